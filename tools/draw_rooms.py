"""Draws docs/images/rooms.svg: which package imports which, without the arrows that others already imply.

python tools/draw_rooms.py
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fedsieve"
ROWS = (
    ("cli",),
    ("review",),
    ("testing", "flower"),
    ("runs",),
    ("runtime",),
    ("settings",),
    ("report", "methods"),
    ("evaluate", "parts"),
    ("core", "estimate"),
    ("data",),
    ("models",),
    ("base",),
)
"""From the roof down."""
WIDTH, HEIGHT, ACROSS, DOWN = 120, 30, 190, 62


def imports() -> dict[str, set[str]]:
    """By package, the other packages that its modules import."""
    packages = {package for row in ROWS for package in row}
    found: dict[str, set[str]] = {package: set() for package in packages}
    for package in packages:
        for path in (SOURCE / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fedsieve."):
                    found[package].add(str(node.module).split(".")[1])
        found[package] = (found[package] & packages) - {package}
    return found


def reached(package: str, edges: dict[str, set[str]]) -> set[str]:
    """All that a package stands on, directly or not."""
    below = set(edges[package])
    for other in edges[package]:
        below |= reached(other, edges)
    return below


def drawing() -> str:
    edges = imports()
    place = {
        package: (30 + ACROSS * (2 - len(row)) / 2 + ACROSS * column, 20 + DOWN * line)
        for line, row in enumerate(ROWS)
        for column, package in enumerate(row)
    }
    shapes = []
    for package, below in sorted(edges.items()):
        for other in sorted(below):
            if any(other in reached(between, edges) for between in below - {other}):
                continue
            (x1, y1), (x2, y2) = place[package], place[other]
            line = f'x1="{x1 + WIDTH / 2:g}" y1="{y1 + HEIGHT:g}" x2="{x2 + WIDTH / 2:g}" y2="{y2 - 5:g}"'
            shapes.append(f'<line {line} stroke="#7a8794" marker-end="url(#tip)"/>')
    for package, (x, y) in sorted(place.items()):
        box = f'x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="4"'
        shapes.append(f'<rect {box} fill="#eef3f7" stroke="#3d5a73"/>')
        at = f'x="{x + WIDTH / 2:g}" y="{y + HEIGHT / 2 + 5:g}"'
        shapes.append(f'<text {at} text-anchor="middle" fill="#1d2b38">{package}</text>')
    size = f"{2 * ACROSS + 30} {DOWN * len(ROWS)}"
    tip = '<marker id="tip" markerWidth="8" markerHeight="8" refX="5" refY="3" orient="auto">'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="sans-serif" font-size="14">',
            f'<rect width="100%" height="100%" fill="white"/><defs>{tip}<path d="M0,0 L6,3 L0,6 z" fill="#7a8794"/>',
            "</marker></defs>",
            *shapes,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    (ROOT / "docs" / "images" / "rooms.svg").write_text(drawing())
