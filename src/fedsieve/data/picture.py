"""A picture of a federation: who holds which classes, how many labels are wrong, and how."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from fedsieve.errors import ConfigError
from fedsieve.report import plots
from fedsieve.report.plots import Plot

SUFFIXES = (".svg", ".html")
NUMBERED = 12
"""Matrices up to this size show the numbers in their cells."""
INCH = 96
STYLE = Path(plots.__file__).parent / "report.css"


def check_suffix(file: Path) -> None:
    if file.suffix not in SUFFIXES:
        raise ConfigError("FS002", f"--picture {file}: cannot be written. Name an .svg or .html file")


def write_picture(described: dict[str, Any], file: Path) -> Path:
    """`described` is what `federation.json` holds."""
    check_suffix(file)
    drawn = pictures(described)
    title = f"{described['data']}: {len(described['clients'])} clients"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_page(title, drawn) if file.suffix == ".html" else _one_svg(drawn), encoding="utf-8")
    return file


def pictures(described: dict[str, Any]) -> list[Plot]:
    """Clients x classes; and, where the truth is known, wrong labels a client and true x given labels."""
    clients, classes = described["clients"], described["class_names"]
    drawn = [
        plots.heat_map(
            "classes",
            f"Given labels of each class on each of {len(clients)} clients.",
            "given labels of a class on a client",
            np.array([client["classes"] for client in clients]).T,
            xlabel="client",
            rows=classes,
            columns=_client_names(clients),
        )
    ]
    realised = [client["noise_realised"] for client in clients]
    if any(rate is not None for rate in realised):
        nominal = [client["noise_nominal"] for client in clients]
        drawn.append(plots.noise_bars("noise", "Wrong labels of each client.", realised, nominal))
    if described["transitions"] is not None:
        counts = np.array(described["transitions"])
        drawn.append(
            plots.heat_map(
                "transitions",
                "Share of each true class that was given each label.",
                "true class (rows) to given label (columns), %",
                100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1),
                xlabel="given label",
                rows=classes,
                columns=classes,
                size=(5.6, 4.6),
                numbers=".0f" if len(counts) <= NUMBERED else "",
            )
        )
    return drawn


def _client_names(clients: list[dict[str, Any]]) -> list[str] | None:
    names = [client["name"] for client in clients]
    return None if None in names else names


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
