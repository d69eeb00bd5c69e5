"""Sections of the page about what happened inside a watched run."""

from __future__ import annotations

from fedsieve.report.canvas import Plot
from fedsieve.report.curve_plots import Series, curves
from fedsieve.report.federation_plots import class_names
from fedsieve.report.folder import RunFolder, Runs
from fedsieve.report.inside_plots import classes_map, neighbour_images, wrong_map
from fedsieve.report.section import Section
from fedsieve.report.tables import per_cent

SIDES = ("right", "wrong")


def curves_section(runs: Runs) -> Section | None:
    """How losses and gradients of rightly and of wrongly labelled samples go."""
    shown = [
        curves(kind, f"{name} of right and wrong labels over rounds: {_ends(series)}.", name, series, {},
               width=9.6 if runs.several else 4.8, shares=False)
        for kind, name in (("loss", "mean cross entropy"), ("gradient", "mean norm of the classifier's gradient"))
        if (series := _sides(runs, kind))
    ]  # fmt: skip
    text = (
        "Cross entropy of the tested model towards the given labels of training rows, and the norm of its gradient "
        "with respect to the classifier, row by row; the evaluator alone knows which labels are wrong. Where the loss "
        "of wrong labels comes down, the model learns them by heart."
    )
    text += " Dashed curves are wrong labels." if runs.several else ""
    return Section("Right and wrong labels", text, plots=tuple(shown)) if shown else None


def map_section(runs: Runs) -> Section | None:
    """The features after the last round, of the first run of each group that has a map."""
    showing = [run for group in runs.groups.values() for run in group[:1] if run.inside and run.inside.map]
    if not showing:
        return None
    shown = [plot for place, run in enumerate(showing) for plot in _maps(run, place)]
    ways = sorted({run.inside.map.how for run in showing if run.inside and run.inside.map})
    text = (
        f"Features of the final model for rows of the clients, brought to two dimensions by {' or '.join(ways)}; the "
        "same points twice. Near points are alike; axes and far distances mean nothing."
    )
    text += f" In this order: {', '.join(run.name for run in showing)}." if runs.several else ""
    return Section("A map of the features", text, plots=tuple(shown))


def neighbours_section(runs: Runs) -> Section | None:
    """What frozen neighbourhoods bring together, of the first run that has any."""
    run = next((run for run in runs.runs if run.inside and run.inside.neighbours), None)
    if run is None or run.inside is None:
        return None
    names, shown = _classes(run), []
    for place, found in enumerate(run.inside.neighbours):
        same = float((found.true[:, 1 : found.near + 1] == found.true[:, :1]).mean())
        alt = f"{len(found.clients)} samples with {found.near} neighbours each; {per_cent(same)} are of the same class."
        clients = [run.client_title(client) for client in found.clients.tolist()]
        shown.append(neighbour_images(f"neighbours{place}", alt, found, names, clients))
    text = (
        "Some samples and those that the frozen encoder finds nearest within a batch of the same client, as stored, "
        "each with its given label. Where that is wrong, the image is framed and the true class stands below."
    )
    text += f" This is {run.name}." if runs.several else ""
    return Section("Neighbours of the frozen encoder", text, plots=tuple(shown))


def _sides(runs: Runs, kind: str) -> list[Series]:
    """Right and wrong: two colours of one run; of several, the colour of the group, wrong labels dashed."""
    found = []
    for place, (label, group) in enumerate(runs.groups.items()):
        for number, side in enumerate(SIDES):
            if known := tuple(filter(None, (run.by_round(f"{kind}_{side}") for run in group))):
                name = f"{side} labels"
                mine = (f"{label}, {name}", place, known, number > 0) if runs.several else (name, number, known)
                found.append(Series(*mine))
    return found


def _ends(series: list[Series]) -> str:
    return "; ".join(f"{one.label} end at {list(mean.values())[-1]:.2f}" for one in series if (mean := one.mean()))


def _maps(run: RunFolder, place: int) -> list[Plot]:
    assert run.inside is not None
    found, names = run.inside.map, _classes(run)
    assert found is not None
    alt = f"{found.how} of the features of {len(found.true):,} rows"
    return [
        classes_map(f"map{place}", f"{alt}, coloured by true class.", found, names),
        wrong_map(f"wrong{place}", f"{alt}; {int(found.wrong.sum()):,} have a wrong label.", found),
    ]


def _classes(run: RunFolder) -> list[str]:
    return class_names(run.federation) if run.federation else []
