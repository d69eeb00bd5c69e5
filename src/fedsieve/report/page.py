"""A self-contained page of sections: no script, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from fedsieve.report.section import Section

Facts = Sequence[tuple[str, str]]
"""What is said in few words, each with its heading."""


def write_page(
    target: Path,
    *,
    title: str,
    headlines: Facts,
    sections: Sequence[Section],
    subtitle: str = "",
    warnings: Sequence[str] = (),
    footer: Facts = (),
) -> Path:
    """Writes the page and returns where it is."""
    here = Path(__file__).parent
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((here / "report.html.j2").read_text(encoding="utf-8"))
    page = template.render(
        title=title,
        subtitle=subtitle,
        warnings=warnings,
        css=(here / "report.css").read_text(encoding="utf-8"),
        headlines=headlines,
        sections=sections,
        footer=footer,
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page, encoding="utf-8", newline="\n")
    return target
