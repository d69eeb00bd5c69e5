"""A federation as a table to read."""

from __future__ import annotations

from typing import Any

from fedsieve.base.errors import one_line

CUT = 9
"""Letters of a class's name where there is no room for all."""


def as_text(described: dict[str, Any], room: int | None = None) -> str:
    """Clients x classes with sizes and realised noise; names of classes are cut where lines exceed the room."""
    whole = _lines(described, [one_line(name) for name in described["class_names"]])
    if room is None or len(whole[0]) <= room:
        return "\n".join(map(one_line, whole))
    return "\n".join(map(one_line, _lines(described, [one_line(name)[:CUT] for name in described["class_names"]])))


def _lines(described: dict[str, Any], names: list[str]) -> list[str]:
    missing = any(client["labelled"] < client["rows"] for client in described["clients"])
    header = ["client", "samples", *(["labelled"] if missing else []), *names, "wrong", "meant"]
    rows = [
        [
            one_line(str(client["client"] if client["name"] is None else client["name"])),
            str(client["rows"]),
            *([str(client["labelled"])] if missing else []),
            *map(str, client["classes"]),
            _share(client["noise_realised"], client["labelled"]),
            _share(client["noise_nominal"], client["labelled"]),
        ]
        for client in described["clients"]
    ]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in [header, *rows]]
    server = ", ".join(_held(name, described) for name in described["server"]) or "nothing"
    lines += [
        "",
        f"data {described['data']}, sample shape {' x '.join(map(str, described['image_shape']))}, "
        f"{described['test']} test samples, {described['validation']} for validation",
        f"server holds: {server}",
        f"wrong labels overall: {_overall(described)}",
        f"hash {described['hash']}",
        *(f"note: {note}" for note in described["notes"]),
    ]
    return lines


def _held(name: str, described: dict[str, Any]) -> str:
    """One of the server's sets, with its share of wrong labels where it has labels and that is known."""
    wrong = described["server_labels"].get(name, {}).get("noise_realised")
    return f"{name} {described['server'][name]}" + ("" if wrong is None else f" ({wrong:.1%} wrong)")


def _share(value: float | None, labelled: int) -> str:
    """A client without labels has none that could be wrong."""
    return "-" if not labelled else "?" if value is None else f"{value:.1%}"


def _overall(described: dict[str, Any]) -> str:
    counts = described["transitions"]
    total = sum(map(sum, counts)) if counts else 0
    return f"{1 - sum(row[i] for i, row in enumerate(counts)) / total:.1%}" if total else "unknown"
