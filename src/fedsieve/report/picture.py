"""A picture of a federation: who holds which classes, how many labels are wrong, and how."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from fedsieve.base.errors import ConfigError
from fedsieve.report.canvas import Plot
from fedsieve.report.federation_plots import classes_plot, noise_plot, transitions_plot
from fedsieve.report.records import Federation

SUFFIXES = (".svg", ".html")
INCH = 96
STYLE = Path(__file__).parent / "report.css"


def check_suffix(file: Path) -> None:
    if file.suffix not in SUFFIXES:
        raise ConfigError("FS002", f"--picture {file}: cannot be written. Name an .svg or .html file")


def write_picture(described: dict[str, Any], file: Path) -> Path:
    """`described` is what `federation.json` holds."""
    check_suffix(file)
    drawn = pictures(Federation.model_validate(described))
    title = f"{described['data']}: {len(described['clients'])} clients"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_page(title, drawn) if file.suffix == ".html" else _one_svg(drawn), encoding="utf-8")
    return file


def pictures(federation: Federation) -> list[Plot]:
    """Clients x classes; and, where the truth is known, wrong labels a client and true x given labels."""
    drawn = [classes_plot(federation), noise_plot(federation), transitions_plot(federation, (5.6, 4.6))]
    return [plot for plot in drawn if plot is not None]


def _page(title: str, drawn: list[Plot]) -> str:
    figures = "".join(f'<section><figure style="--inches: {p.width}">{p.svg}</figure></section>\n' for p in drawn)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title>\n'
        f"<style>{STYLE.read_text(encoding='utf-8')}</style></head>\n<body><h1>{escape(title)}</h1>\n{figures}</body></html>\n"
    )


def _one_svg(drawn: list[Plot]) -> str:
    """The plots below each other in one file, in the light colours of the report."""
    css = STYLE.read_text(encoding="utf-8")
    colours = css[: css.index("}") + 1]
    heights = [plot.width * _ratio(plot) for plot in drawn]
    width, at, inner = max(plot.width for plot in drawn), 0.0, []
    for plot, height in zip(drawn, heights, strict=True):
        place = f'<svg x="0" y="{at * INCH:.0f}" width="{plot.width * INCH:.0f}" height="{height * INCH:.0f}" '
        inner.append(plot.svg.replace("<svg ", place, 1))
        at += height
    size = f"{width * INCH:.0f} {at * INCH:.0f}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 {size}">\n'
        f"<style>{colours}\ntext {{ font-family: system-ui, sans-serif !important; }}</style>\n"
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(inner) + "\n</svg>\n"
    )


def _ratio(plot: Plot) -> float:
    """Height over width, from the view box."""
    box = plot.svg.split('viewBox="', 1)[1].split('"', 1)[0].split()
    return float(box[3]) / float(box[2])
