"""Sections of the page about labels: which are suspicious, owner by owner, and what is suggested instead."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Sequence

import numpy as np
from PIL import Image

from fedsieve.evaluate.labels import flagged_by_owner, shown_suspects
from fedsieve.evaluate.schema import MOST_SHOWN, File
from fedsieve.report.federation_plots import relabelling_plot
from fedsieve.report.folder import RunFolder, Runs
from fedsieve.report.records import Label
from fedsieve.report.section import Card, Gallery, Section
from fedsieve.report.tables import count


def suspects_section(runs: Runs) -> Section | None:
    """The worst of the flagged labels of each owner, with their samples where the run's folder has them."""
    run = runs.first
    if not run.labels:
        return None
    flagged, judged = flagged_by_owner(run.labels), Counter(label.owner for label in run.labels)
    shown, owners = shown_suspects(run.labels), sum(map(bool, flagged.values()))
    text = f"{count(sum(map(len, flagged.values())))} of {count(len(run.labels))} labels are flagged, at "
    text += f"{count(owners)} of {count(len(flagged))} owners. A score of 0 is surely wrong, 1 surely right. "
    text += f"Below are at most {MOST_SHOWN} of an owner" if shown else ""
    text += f", of the {len(shown)} owners with the most" if len(shown) < owners else ""
    text += f"{'. All' if shown else 'All'} are in {File.LABELS}, the worst of each owner first."
    text += f" This is the first run, {run.name}." if runs.several else ""
    galleries = tuple(
        Gallery(f"{owner}: {count(len(flagged[owner]))} of {count(judged[owner])} flagged", _cards(run, mine))
        for owner, mine in shown.items()
    )
    return Section("Suspicious labels", text, galleries=galleries)


def relabelling_section(runs: Runs) -> Section | None:
    """Given against suggested labels, where any differ."""
    for run in runs.runs:
        names = {name: index for index, name in enumerate(run.federation.class_names)} if run.federation else {}
        pairs = [(names[one.given], names.get(one.suggested)) for one in run.labels or () if one.given in names]
        changed = [(given, given if suggested is None else suggested) for given, suggested in pairs]
        if run.federation and any(given != suggested for given, suggested in changed):
            text = "How many labels of each given class have which other suggested."
            text += f" This is {run.name}." if runs.several else ""
            return Section("What became of the labels", text, plots=(relabelling_plot(run.federation, changed),))
    return None


def _cards(run: RunFolder, labels: Sequence[Label]) -> tuple[Card, ...]:
    return tuple(_card(run, label) for label in labels)


def _card(run: RunFolder, label: Label) -> Card:
    sample = run.suspects.get((label.owner, label.where))
    image = "" if sample is None or sample.image is None else _address(sample.image)
    said = f"{label.given} → {label.suggested}" if label.suggested else f"{label.given} → ?"
    values = (sample.values,) if sample and sample.values else ()
    twin = (f"nearly the same as {label.twin}, which is labelled otherwise",) if label.twin else ()
    return Card(image, f"The sample {label.where}", (said, f"score {label.score:.3f}", *values, label.where, *twin))


def _address(image: np.ndarray) -> str:
    """The picture itself; with three channels in colour, with others by their mean."""
    pixels = image if image.shape[2] == 3 else image.mean(axis=2).round().astype(np.uint8)
    content = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(content, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
