"""What people decided, applied to a federation: `data.corrections=decisions.jsonl`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedsieve.base.errors import DataError, nearest
from fedsieve.data.decisions import CHANGES, Action, Key, Standing, read_decisions
from fedsieve.data.federation import Federation
from fedsieve.data.origins import indices
from fedsieve.data.sources import Source
from fedsieve.data.truth import GroundTruth

THE_SAME = "Give the data that were reviewed"


def check_classes(standing: Mapping[Key, Standing], names: Collection[str], file: Path) -> None:
    """FS332 for a decision in favour of a class that the data do not have."""
    for one in standing.values():
        name = one.decision.after
        if name is not None and name not in names:
            raise DataError(
                "FS332", f"{file}, {one.place}: the data have no class '{name}'. {nearest(name, names)} {THE_SAME}"
            )


def check_label(one: Standing, label: str, file: Path) -> None:
    """FS331 where a row is labelled neither as it was when it was reviewed, nor as was decided."""
    if label not in (one.decision.before, one.decision.after):
        raise DataError(
            "FS331",
            f"{file}, {one.place}: was labelled '{one.decision.before}' when it was reviewed, and is '{label}' in the "
            f"data. {THE_SAME}, with the same noise and seed",
        )


def check_samples(standing: Mapping[Key, Standing], known: Collection[str], file: Path) -> None:
    """FS331 for a decision on a sample that is not in the data."""
    for one in standing.values():
        if one.decision.sample.where not in known:
            raise DataError("FS331", f"{file}, {one.place}: is not in the data. {THE_SAME}")


class Corrections:
    """A file of decisions, checked against the rows and classes of a federation."""

    def __init__(self, file: Path | str, federation: Federation) -> None:
        self.decisions = read_decisions(Path(file).expanduser())
        self._names = federation.class_names
        self._number = {name: code for code, name in enumerate(self._names)}
        standing = self.decisions.standing()
        check_classes(standing, self._number, self.decisions.file)
        by_where = {one.decision.sample.where: one for one in standing.values()}
        origins = indices(federation.data, len(federation.images)) if federation.origins is None else federation.origins
        row_of = {where: row for row, where in enumerate(origins) if where in by_where}
        check_samples(standing, row_of, self.decisions.file)
        self._by_row = {row: by_where[where] for where, row in row_of.items()}

    def applied(self, federation: Federation) -> tuple[Federation, list[np.ndarray]]:
        """The clients' rows with the labels that were decided, without those that were excluded; and per client,
        which rows stay."""
        given, kept, changed = [], [], 0
        for mine, labels in zip(federation.rows, federation.given, strict=True):
            for place, one in self._found(mine):
                if labels[place] >= 0:  # the run may let clients have none
                    check_label(one, self._names[labels[place]], self.decisions.file)
            new, stays = self.decided(mine, labels)
            changed += int((new != labels).sum())
            given.append(new[stays])
            kept.append(stays)
        left_out = sum(int((~stays).sum()) for stays in kept)
        note = f"{self.decisions.file}: {changed} labels corrected, {left_out} rows left out"
        rows = tuple(mine[stays] for mine, stays in zip(federation.rows, kept, strict=True))
        notes = (*federation.notes, note, *self.decisions.notes)
        return replace(federation, rows=rows, given=tuple(given), notes=notes), kept

    def decided(self, rows: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Labels of rows of `images` after the decisions, and which rows stay."""
        new, stays = labels.copy(), np.ones(len(rows), bool)
        for place, one in self._found(rows):
            stays[place] = one.decision.action != "exclude"
            if one.decision.action in CHANGES and new[place] == self._number.get(one.decision.before):
                new[place] = self._number[str(one.decision.after)]
        return new, stays

    def _found(self, rows: np.ndarray) -> Iterator[tuple[int, Standing]]:
        """Places among these rows that somebody decided on."""
        for place in np.flatnonzero(np.isin(rows, list(self._by_row))).tolist():
            yield place, self._by_row[int(rows[place])]


def corrected(
    federation: Federation, truth: GroundTruth, file: Path | str, *, kept_for_test: np.ndarray | None = None
) -> tuple[Federation, GroundTruth]:
    """The federation after the decisions of a file.

    Where test rows were taken from the clients' own (`kept_for_test`: their rows of `images`) and nobody knows the
    truth, what was decided on them holds too.
    """
    corrections = Corrections(file, federation)
    made, kept = corrections.applied(federation)
    if truth.labels is not None:
        true = tuple(labels[stays] for labels, stays in zip(truth.labels, kept, strict=True))
        return made, replace(truth, labels=true)
    if kept_for_test is None:
        return made, truth
    test, stays = corrections.decided(kept_for_test, truth.test)
    texts = None if made.test_texts is None else tuple(np.array(made.test_texts, object)[stays])
    return replace(made, test_images=made.test_images[stays], test_texts=texts), replace(truth, test=test[stays])


def kept_for_test(source: Source) -> np.ndarray | None:
    """The rows of `images` that the test samples are copies of, where the data bring no test set of their own."""
    if source.rows is None:
        return None
    return np.setdiff1d(np.arange(len(source.images)), source.rows)


def summary(standing: Mapping[Key, Standing]) -> str:
    """In one line, what was decided in the end."""
    actions = [one.decision.action for one in standing.values()]
    told = ", ".join(f"{actions.count(name)} {word}" for name, word in WORDS.items() if name in actions)
    return f"{len(actions)} rows decided: {told}" if actions else "nothing is decided"


WORDS: Mapping[Action, str] = {
    "keep": "kept",
    "take": "as suggested",
    "other": "another class",
    "unsure": "unsure",
    "exclude": "excluded",
}
