"""Checkpoints: the server's state as safetensors and JSON, the previous one kept.

A checkpoint is a manifest `NNNNNNNN.json` that names its files with their checksums inside; it is written last. Memory
with one row per client is stored row by row, so that a round writes only the rows it changed. The clients' states are
files of their own (`ClientStates`); the manifest names their versions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from fedsieve.base.errors import RunError
from fedsieve.base.files import (
    Damaged,
    private_folder,
    read_json,
    read_tensors,
    refuse_link,
    write_json,
    write_tensors,
)
from fedsieve.core.client_states import ClientStates
from fedsieve.core.server import Server, ServerState

FORMAT = 1
KEPT = 2
COUNTERS = ("round", "stage", "t", "started", "messages", "talk_down", "talk_up")
Count = Annotated[int, Field(ge=0, lt=2**53)]
Client = Annotated[int, Field(gt=-(2**31), lt=2**31)]
"""-1 is the server itself, -2 and below for further groups."""
Number = Annotated[str, Field(pattern=r"^(0|-?[1-9]\d{0,9})$")]
"""A client or a group as a key of JSON."""
Name = Annotated[str, Field(min_length=1, max_length=1000)]


class Manifest(BaseModel):
    """What a manifest may say: whole numbers within their ranges, and names of files of its own folder."""

    model_config = ConfigDict(strict=True, extra="forbid")

    format: Literal[1]
    round: Count
    stage: Count
    t: Count
    started: bool
    messages: Count
    talk_down: Count
    talk_up: Count
    versions: dict[Number, Count]
    server_epochs: dict[Number, Count]
    tensors: Annotated[str, Field(pattern=r"^\d{8}\.safetensors$")]
    rows: list[tuple[Name, Name, Client, Annotated[str, Field(pattern=r"^rows/[^/\x00]+\.\d{8}\.safetensors$")]]]


class Checkpoints:
    """Saves every `every` rounds, after every conversation, and whatever is unsaved when asked to `flush`."""

    def __init__(self, folder: Path, states: ClientStates, every: int = 1) -> None:
        self.folder = folder
        self._states = states
        self._every = every
        self._number = 0
        self._manifests: dict[int, dict[str, Any]] = {}
        self._rows: dict[tuple[str, str, int], tuple[Tensor, str]] = {}
        self._unsaved: ServerState | None = None

    def retained(self, client: int) -> tuple[int, ...]:
        """Versions of a client's state that a kept checkpoint names, or the one that `flush` would write."""
        named = {manifest["versions"].get(str(client), 0) for manifest in self._manifests.values()}
        if self._unsaved is not None:
            named.add(self._unsaved.versions.get(client, 0))
        return tuple(sorted(named - {0}))

    def commit(self, s: Server) -> None:
        if s.state.t == 0 or s.state.round % self._every == 0:
            self._save(s.state)
        else:
            self._unsaved = s.state.copy()

    def flush(self) -> None:
        """Save the last whole state if it is not saved yet."""
        if self._unsaved is not None:
            self._save(self._unsaved)

    def _save(self, state: ServerState) -> None:
        private_folder(self.folder)
        number = self._number + 1
        tensors = f"{number:08d}.safetensors"
        write_tensors(self.folder / tensors, _tensors(state))
        rows = [
            [part, name, client, self._row(part, name, client, tensor, number)]
            for (part, name), kept in state.rows.items()
            for client, tensor in kept.items()
        ]
        manifest = {
            "format": FORMAT,
            **{counter: getattr(state, counter) for counter in COUNTERS},
            "versions": {str(client): version for client, version in sorted(state.versions.items())},
            "server_epochs": {str(group): epochs for group, epochs in sorted(state.server_epochs.items())},
            "tensors": tensors,
            "rows": rows,
        }
        write_json(self.folder / f"{number:08d}.json", manifest)
        self._number = number
        self._manifests[number] = manifest
        self._unsaved = None
        self._tidy()

    def _row(self, part: str, name: str, client: int, tensor: Tensor, number: int) -> str:
        """The file of one row; written only if the row is not the one last written."""
        before = self._rows.get((part, name, client))
        if before is not None and before[0] is tensor:
            return before[1]
        file = f"rows/{quote(part, safe='')}.{quote(name, safe='')}.{client}.{number:08d}.safetensors"
        write_tensors(self.folder / file, {"row": tensor})
        self._rows[part, name, client] = (tensor, file)
        return file

    def _tidy(self) -> None:
        """Drop what no kept checkpoint names."""
        self._manifests = dict(sorted(self._manifests.items())[-KEPT:])
        named = {file for manifest in self._manifests.values() for file in _files(manifest)}
        named |= {f"{number:08d}.json" for number in self._manifests}
        for pattern in ("*.json", "*.safetensors", "rows/*.safetensors"):
            for path in self.folder.glob(pattern):
                if str(path.relative_to(self.folder)) not in named:
                    path.unlink(missing_ok=True)

    def load(self, say: Callable[[str], None]) -> ServerState | None:
        """The newest whole checkpoint, or None if the run never saved one. Damaged ones are named through `say`."""
        found = sorted(self.folder.glob("[0-9]*.json"), reverse=True)
        for path in found:
            try:
                state, manifest = self._read(path)
            except Damaged as problem:
                say(f"checkpoint {path.stem} is damaged and passed over: {problem}")
                continue
            self._number = int(path.stem)
            self._manifests = {self._number: manifest}
            return state
        if found:
            raise RunError("FS212", f"{self.folder}: no checkpoint is whole. Start the run anew with overwrite=true")
        return None

    def _read(self, path: Path) -> tuple[ServerState, dict[str, Any]]:
        manifest = read_json(path)
        if manifest.get("format") != FORMAT:
            raise RunError(
                "FS212",
                f"{path}: written by another version of fedsieve (format {manifest.get('format')}, not {FORMAT}). "
                "Resume with that version, or start the run anew with overwrite=true",
            )
        try:
            Manifest.model_validate_json(json.dumps(manifest))
        except ValidationError as problem:
            first = problem.errors()[0]
            raise Damaged(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        state = _state(self._tensors(manifest["tensors"]), path)
        for counter in COUNTERS:
            setattr(state, counter, manifest[counter])
        state.versions = {int(client): version for client, version in manifest["versions"].items()}
        state.server_epochs = {int(group): epochs for group, epochs in manifest["server_epochs"].items()}
        for part, name, client, file in manifest["rows"]:
            tensors = self._tensors(file)
            if "row" not in tensors:
                raise Damaged(f"{self.folder / file} holds no row")
            row = tensors["row"]
            state.rows.setdefault((part, name), {})[client] = row
            self._rows[part, name, client] = (row, file)
        for client, version in state.versions.items():
            self._states.verify(client, version)
        return state, manifest

    def _tensors(self, name: str) -> dict[str, Tensor]:
        """Of a file that a manifest names; a link is not followed, wherever it leads."""
        path = self.folder / name
        if path.parent != self.folder:
            refuse_link(path.parent)
        return read_tensors(path)


def _files(manifest: dict[str, Any]) -> list[str]:
    return [manifest["tensors"], *(file for *_, file in manifest["rows"])]


def _tensors(state: ServerState) -> dict[str, Tensor]:
    """Group models, columns, norms and part memory under slash-separated names."""
    named = {f"models/{g}/{i}": net for g, nets in state.models.items() for i, net in enumerate(nets)}
    named |= {f"columns/{name}": column for name, column in state.columns.items()}
    named |= {f"norms/{name}": medians for name, medians in state.norms.items()}
    for (part, group), memory in state.memory.items():
        named |= {f"memory/{part}/{group}/{name}": tensor for name, tensor in memory.items()}
    # Groups may share one tensor; a file holds each under its own name.
    return {name: tensor.clone() for name, tensor in named.items()}


KEYS = re.compile(r"models/(\d+)/(\d+)|columns/(.+)|norms/(.+)|memory/([^/]+)/(\d+)/(.+)")


def _state(tensors: dict[str, Tensor], path: Path) -> ServerState:
    models: dict[int, dict[int, Tensor]] = {}
    state = ServerState({}, {})
    for key, tensor in tensors.items():
        found = KEYS.fullmatch(key)
        if found is None:
            raise Damaged(f"{path}: its tensors have the unknown name '{key}'")
        group, index, column, measure, part, within, name = found.groups()
        if group is not None:
            models.setdefault(int(group), {})[int(index)] = tensor
        elif column is not None:
            state.columns[column] = tensor
        elif measure is not None:
            state.norms[measure] = tensor
        else:
            state.memory.setdefault((part, int(within)), {})[name] = tensor
    state.models = {g: tuple(nets[i] for i in sorted(nets)) for g, nets in sorted(models.items())}
    return state
