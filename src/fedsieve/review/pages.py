"""The files that the page is made of."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parent / "page"
STYLE = Path(__file__).parents[1] / "report" / "report.css"
"""Of the report, whose look the page has."""
FILES = {file.name: file for file in [*sorted(PAGE.iterdir()), STYLE] if file.suffix in (".js", ".css", ".svg")}
