"""What a run leaves behind while it goes on: a row a round, a row a client a round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from fedsieve.base.disk import append_bytes, write_bytes
from fedsieve.base.seal import seal, unseal
from fedsieve.core.part import defines
from fedsieve.core.rounds import Round
from fedsieve.core.server import GROUP, Server
from fedsieve.core.types import SERVER
from fedsieve.evaluate.evaluator import Evaluator, Judged
from fedsieve.evaluate.probe import has_collapsed
from fedsieve.evaluate.schema import PROBE_ROWS, File, names

OF_SERVER = ("group", "status", "reason", "n", "weight", "loss")
"""Of a round in which the server takes part, what is told of it."""
LARGEST = 2.0**62
LISTED = 10
"""Rounds that a note names."""
Row = dict[str, Any]


class JsonLines:
    """A file of one JSON object a line, each with a checksum; rows of rounds that are run again are taken out first."""

    def __init__(self, path: Path, rounds_done: int, sound: Callable[[Row], bool] = lambda _: True) -> None:
        self._path = path
        self._sound = sound
        self.damaged = 0
        """Lines before the last one that say nothing any more."""
        self.rows = [row for row in self._read() if row["round"] <= rounds_done]
        write_bytes(path, "".join(f"{seal(row)}\n" for row in self.rows).encode())

    def _read(self) -> list[Row]:
        """The lines whose checksum holds; the last one may have been cut off by a crash."""
        rows = []
        lines = self._path.read_bytes().split(b"\n") if self._path.exists() else []
        for number, line in enumerate(lines, 1):
            try:
                row = unseal(line.decode(), required=True)
                if type(row.get("round")) is not int or row["round"] < 1 or not self._sound(row):
                    raise ValueError("is no row of ours")
                rows.append(row)
            except ValueError:
                self.damaged += number < len(lines)
        return rows

    def add(self, rows: list[Row]) -> None:
        """Rows are on disk before the checkpoint that counts on them. A file that was taken away is not made anew."""
        self.rows += rows
        append_bytes(self._path, "".join(f"{seal(row)}\n" for row in rows).encode())


class Recorder:
    """Evaluates after each round and writes what happened."""

    def __init__(
        self,
        folder: Path,
        evaluator: Evaluator,
        rounds_done: int,
        *,
        eval_every: int,
        last_round: int,
        tell: Callable[[Row], None],
    ) -> None:
        self.metrics = JsonLines(folder / File.METRICS, rounds_done, _tells_a_round)
        self.clients = JsonLines(folder / File.CLIENTS, rounds_done, lambda row: type(row.get("client")) is int)
        self.missing = sorted({*range(1, rounds_done + 1)} - {row["round"] for row in self.metrics.rows})
        """Rounds before this start of which metrics.jsonl has no row any more."""
        self.client_accuracy: list[float | None] = []
        self.confusion: list[list[int]] | None = None
        self.reference_probes: dict[str, float] | None = None
        self._evaluator = evaluator
        self._eval_every = eval_every
        self._last_round = last_round
        self._tell = tell

    def notes(self) -> list[str]:
        """What is missing of the rounds before, if anything is."""
        notes = []
        if self.missing:
            notes.append(
                f"{File.METRICS}: the rows of rounds {_listed(self.missing)} are lost or damaged; "
                "the model is not touched by that, but sums and means of the summary lack them"
            )
        kept = Counter(row["round"] for row in self.clients.rows)
        told = {row["round"]: sum(row[kind] for kind in names("count")) for row in self.metrics.rows}
        short = [number for number, count in told.items() if kept[number] < count]
        short += [number for number in self.missing if not kept[number]]
        if short or self.clients.damaged:
            notes.append(f"{File.CLIENTS}: rows of rounds {_listed(sorted(short))} are lost or damaged")
        return notes

    def collapsed(self) -> bool | None:
        """Whether the features of the last test say nothing any more; None where nobody looked at features."""
        told = [(row["feature_spread"], row["feature_rank"]) for row in self.metrics.rows]
        tested = [features for features in told if None not in features]
        return has_collapsed(*tested[-1]) if tested else None

    def round_done(self, s: Server, what: Round) -> None:
        number = s.state.round
        parts = [part for stage in s.plan.stages for part in stage.parts]
        chose = any(defines(p, "relabel") or "labels" in p.writes or p.guesses for p in parts)
        with what.timed("evaluate"):
            scores: Row = dict.fromkeys((*names("score", "watched"), PROBE_ROWS))
            if number % self._eval_every == 0 or number == self._last_round:
                scores |= self._evaluator.scores(s)
                self.client_accuracy = scores.pop("client_accuracy")
                self.confusion = scores.pop("confusion")
            ups = {k: up for k, up in what.ups.items() if k > SERVER}
            judged = self._evaluator.selections({k: up.version for k, up in ups.items()}) if chose else {}
        rows = _rows(s, what, judged)
        of_clients = [row for row in rows if row["client"] > SERVER]
        skipped = [k for k, up in ups.items() if up.models is None]
        losses = [up.loss for up in ups.values() if up.models is not None]
        row: Row = {
            "round": number,
            "stage": what.stage,
            "extra": s.plan.stages[s.state.stage].extra,
            **scores,
            **{field: _mean([getattr(one, field) for one in judged.values()]) for field in Judged._fields},
            **self._evaluator.client_noise(s, [k for k in what.weights if k > SERVER]),
            "clustering_ari": self._evaluator.clustering(s),
            "train_loss": _mean(losses),
            "columns": _columns(s, ups),
            "bytes_up": what.bytes_up,
            "bytes_down": what.bytes_down,
            "bytes_talk": what.bytes_talk,
            "seconds": sum(what.seconds.values()),
            "seconds_by": what.seconds,
            "reports": len(ups) - len(skipped),
            "refused": sum(row["status"] == "refused" for row in of_clients),
            "dropped": len(what.dropped) + len(what.lost),
            "skipped": len(skipped),
            "server": [{key: row[key] for key in OF_SERVER} for row in rows if row["client"] <= SERVER],
            "events": [{"code": event.code, "client": event.client, "message": event.message} for event in what.events],
        }
        self.clients.add(of_clients)
        self.metrics.add([row])
        self._tell(row)


def _rows(s: Server, what: Round, judged: dict[int, Judged]) -> list[Row]:
    """A row for each who was chosen, be it the server."""
    verdict = s.columns.get(s.plan.verdict)

    def score(client: int) -> float | None:
        known = verdict[client] if verdict is not None and client > SERVER else None
        return None if known is None or known.isnan() else float(known)

    def row(client: int, status: str, reason: str | None, **more: Any) -> Row:
        return {
            "round": s.state.round,
            "client": client,
            "group": s.state.group_of(client),
            "status": status,
            "reason": reason,
            "n": None,
            "weight": None,
            "loss": None,
            **dict.fromkeys(Judged._fields),
            "score": score(client),
        } | more

    rows = []
    for k, up in what.ups.items():
        if up.models is None:
            rows.append(row(k, "skipped", up.skipped, n=up.n))
        else:
            seen = judged[k]._asdict() if k in judged else {}
            rows.append(row(k, "reported", None, n=up.n, weight=what.weights.get(k), loss=up.loss, **seen))
    rows += [row(k, "dropped", "did not report (simulated)") for k in what.dropped]
    for status, events in (("refused", what.refused), ("dropped", what.lost)):
        for event in events:
            assert event.client is not None
            rows.append(row(event.client, status, f"{event.message} [{event.code}]"))
    return sorted(rows, key=lambda r: r["client"])


def _columns(s: Server, ups: Collection[int]) -> dict[str, float | None]:
    """The mean over this round's clients of each column that parts fill, but for the group."""
    filled = sorted({name for stage in s.plan.stages for part in stage.parts for name in part.writes} & {*s.columns})
    means = {name: s.columns[name][list(ups)].nanmean() for name in filled if name != GROUP}
    return {name: None if mean.isnan() else float(mean) for name, mean in means.items()}


def _tells_a_round(row: Row) -> bool:
    """Whether all that a summary is made of is there and is a number."""
    amounts = [row.get(key) for key in names("amount", "count")]
    scores = [row.get(key, "") for key in names("score", "label", "verdict")]
    scores += [row.get(key) for key in names("watched")]  # which older runs do not have
    numbers = [*amounts, *(score for score in scores if score is not None)]
    return all(type(number) in (int, float) and not abs(number) >= LARGEST for number in numbers)


def _listed(rounds: list[int]) -> str:
    shown = ", ".join(map(str, rounds[:LISTED]))
    return f"{shown} and {len(rounds) - LISTED} more" if len(rounds) > LISTED else shown


def _mean(values: list[Any]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
