"""Each client's own state, in versioned files beside the client. A version is never overwritten with other content.

States hold what a method thinks of single labels: the folder and its files are their owner's alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fedsieve.base.errors import RunError
from fedsieve.base.files import Damaged, private_folder, read_tensors, refuse_link, write_tensors


class ClientStates:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, client: int, version: int) -> Path:
        return self.folder / str(client) / f"{version:08d}.safetensors"

    def load(self, client: int, version: int) -> dict[str, Tensor]:
        """Version 0 is the empty state."""
        if version == 0:
            return {}
        try:
            return self._read(client, version)
        except Damaged as problem:
            raise RunError(
                "FS205",
                f"client {client}: version {version} of its state is wanted, but {problem}; "
                f"there are versions {self.versions(client)}. Restore the file or start the run anew",
            ) from None

    def save(self, client: int, version: int, state: Mapping[str, Tensor], retain: set[int]) -> int:
        """Store a state under its version and drop versions that nobody will ask for; an empty state is version 0."""
        if not state:
            return 0
        private_folder(private_folder(self.folder) / str(client))
        write_tensors(self.path(client, version), state)
        for old in self.versions(client):
            if old != version and old not in retain:
                self.path(client, old).unlink(missing_ok=True)
        return version

    def verify(self, client: int, version: int) -> None:
        """Raises `Damaged` if a version that a checkpoint names is not whole."""
        if version:
            self._read(client, version)

    def _read(self, client: int, version: int) -> dict[str, Tensor]:
        path = self.path(client, version)
        refuse_link(path.parent)
        return read_tensors(path)

    def versions(self, client: int) -> list[int]:
        return sorted(
            int(path.stem) for path in (self.folder / str(client)).glob("*.safetensors") if path.stem.isdecimal()
        )
