"""Values that a plot tells to whom points at it, without any script, and the names that it uses for clients."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from run_folders import make_run

from fedsieve.report.bar_plots import boxes, noise_bars, scatter, sorted_clients, time_by_group, time_by_round
from fedsieve.report.canvas import Plot
from fedsieve.report.curve_plots import POINTED_AT, Series, client_band, curves
from fedsieve.report.html import write_report
from fedsieve.report.matrix_plots import MOST_CELLS, dendrogram, heat_map, small_matrices

RECT = re.compile(
    r'<rect x="(?P<x>[-\d.]+)" y="(?P<y>[-\d.]+)" width="(?P<width>[\d.]+)" height="(?P<height>[\d.]+)" '
    r'fill="none" pointer-events="all"><title>(?P<text>[^<]*)</title></rect>'
)


class Told(NamedTuple):
    """An area and what it tells."""

    x: float
    y: float
    width: float
    height: float
    text: str

    @property
    def middle(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height / 2


def told(plot: Plot) -> list[Told]:
    found = [match.groupdict() for match in RECT.finditer(plot.svg)]
    return [
        Told(float(one["x"]), float(one["y"]), float(one["width"]), float(one["height"]), one["text"]) for one in found
    ]


def texts(plot: Plot) -> list[str]:
    return [one.text for one in told(plot)]


def test_points_lie_where_their_marks_are_drawn() -> None:
    plot = curves("c", "", "", [Series("mine", 0, ({1: 0.25, 2: 0.5, 4: 0.75},))], {})
    line = next(
        re.finditer(r'<g id="c-line2d_\d+">.*?</g>\s*</g>', plot.svg[plot.svg.index("--series-1") - 400 :], re.S)
    )
    marks = re.findall(r'<use xlink:href="#c-[^"]*" x="([\d.]+)" y="([\d.]+)"', line[0])
    assert [one.text for one in told(plot)] == [f"mine, round {r}: {v:.2f} %" for r, v in ((1, 25), (2, 50), (4, 75))]
    assert np.array([one.middle for one in told(plot)]) == pytest.approx(np.array(marks, dtype=float), abs=0.11)


def test_cells_share_out_the_picture_and_tell_row_column_and_value() -> None:
    plot = heat_map(
        "m",
        "",
        "",
        [[1, 2000], [0, np.nan]],
        xlabel="given",
        rows=["cat", "a<b"],
        columns=["cat", "a<b"],
        numbers=".0f",
    )
    first, second, below = told(plot)  # where nothing is known, nothing is told
    assert [first.text, second.text] == ["cat, given cat: 1", "cat, given a&lt;b: 2,000"]
    assert below.text == "a&lt;b, given cat: 0"
    assert first.x + first.width == pytest.approx(second.x, abs=0.11)
    assert first.y + first.height == pytest.approx(below.y, abs=0.11)
    written = re.findall(r'text-anchor: middle; fill: var\(--ink\)" x="([\d.]+)" y="([\d.]+)"', plot.svg)
    assert [first.middle[0], second.middle[0]] == pytest.approx([float(x) for x, _ in written], abs=0.11)
    assert all(one.y < float(y) < one.y + one.height for one, (_, y) in zip((first, second), written, strict=True))


def test_columns_without_names_have_numbers() -> None:
    plot = heat_map("m", "", "", [[1, 2]], xlabel="client, sorted", each="client", rows=["cat"], told="{:.1f} %")
    assert texts(plot) == ["cat, client 0: 1.0 %", "cat, client 1: 2.0 %"]


def test_of_very_many_cells_none_is_told() -> None:
    rows = [str(i) for i in range(10)]
    enough, more = (
        heat_map("m", "", "", np.ones((10, n)), xlabel="client", rows=rows) for n in (MOST_CELLS // 10, MOST_CELLS)
    )
    assert len(told(enough)) == MOST_CELLS
    assert told(more) == []


def test_long_curves_tell_some_values_evenly() -> None:
    plot = curves("c", "", "", [Series("mine", 0, (dict.fromkeys(range(1, 251), 0.5),))], {})
    rounds = [int(text.split("round ")[1].split(":")[0]) for text in texts(plot)]
    assert rounds == list(range(1, 251, 3))
    assert len(rounds) <= POINTED_AT


def test_bars_tell_the_client_by_name() -> None:
    names = ["St Mary", "north"]
    wrong = noise_bars("n", "", [0.125, 0.5], [0.1, None], names)
    assert texts(wrong) == ["client St Mary: 12.5 % wrong, nominal 10.0 %", "client north: 50.0 % wrong"]
    assert all(f">{name}</text>" in wrong.svg for name in names)
    left, right = told(wrong)
    assert left.x + left.width == pytest.approx(right.x, abs=0.11)
    assert texts(noise_bars("n", "", [None], [0.1], ["north"])) == []
    accuracy = sorted_clients("s", "", [("St Mary", 0.9), ("north", 0.8)])
    assert texts(accuracy) == ["client north: 80.00 %", "client St Mary: 90.00 %"]
    assert accuracy.svg.index(">north</text>") < accuracy.svg.index(">St Mary</text>")


def test_where_names_have_no_room_there_are_numbers() -> None:
    names = [f"ward {i}" for i in range(40)]
    plot = noise_bars("n", "", [0.1] * 40, [None] * 40, names)
    assert ">ward 7</text>" not in plot.svg
    assert texts(plot)[7] == "client ward 7: 10.0 % wrong"


def test_points_of_clients_tell_who_they_are() -> None:
    plot = scatter("p", "", "", [0.25, 0.5], [0.123456, 2.0], ["St Mary", "north"])
    assert texts(plot) == ["client St Mary: 0.1235, 25.0 % wrong", "client north: 2, 50.0 % wrong"]


def test_boxes_tell_their_quartiles() -> None:
    (one,) = told(boxes("b", "", "", {"fedavg": [0.0, 0.1, 0.2, 0.3, 0.4], "none": []}))
    assert one.text == "fedavg: median 20.00 %, quartiles 10.00 and 30.00 %, 0.00 to 40.00 %"


def test_bands_and_times_tell_every_round() -> None:
    band = client_band("b", "", [1, 2], [0.5, 0.6], [0.1, 0.2], [0.3, 0.4])
    assert texts(band)[1] == "round 2: mean 60.00 ± 20.00 %, worst client 40.00 %"
    few = time_by_round("t", "", [1, 2], {"train": [1.0, 2.0], "store": [0.5, 0.25]})
    assert texts(few) == ["round 1: train 1.00 s, store 0.50 s", "round 2: train 2.00 s, store 0.25 s"]
    many = time_by_round("t", "", range(1, 122), {"train": np.arange(1.0, 122.0)})
    assert texts(many)[0] == "round 1 to 2, mean: train 1.50 s"
    assert texts(many)[-1] == "round 121: train 121.00 s"
    groups = time_by_group("g", "", ["fedavg", "fedrn"], {"train": [1.0, 2.0], "store": [0.5, 0.25]})
    assert texts(groups) == ["fedavg: train 1.00 s, store 0.50 s", "fedrn: train 2.00 s, store 0.25 s"]


def test_of_nested_joins_the_inner_one_lies_on_top() -> None:
    plot = dendrogram("d", "", "", [[0, 2, 0.25, 2], [1, 3, 0.5, 3]], ["a", "b", "c"])
    assert texts(plot) == ["joined at 0.5", "joined at 0.25"]


def test_small_matrices_tell_whose_they_are() -> None:
    plot = small_matrices("m", "", "", [np.eye(2)], ["north, 20 % wrong"], ["cat", "dog"])
    assert texts(plot)[1] == "north, 20 % wrong: cat, dog: 0.00"
    assert told(small_matrices("m", "", "", np.ones((9, 15, 15)), ["x"] * 9, [])) == []


def test_clients_have_their_names_in_every_plot(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    described = json.loads((folder / "federation.json").read_text())
    for client, name in zip(described["clients"], ("St Mary", "north", "Charité"), strict=True):
        client["name"] = name
    (folder / "federation.json").write_text(json.dumps(described))
    page = write_report([folder], folder / "report.html").read_text()
    assert "client St Mary: 0.7, 0.0 % wrong" in page  # its weight
    assert "client Charité: 20.0 % wrong, nominal 20.0 %" in page
    assert "cat $x$, client north: 5" in page
    assert "client Charité: 61.00 %" in page
    assert "north: 10 %, round 1: 0.2" in page  # scores by round
    assert "<title>north, client Charité: 0</title>" in page  # pairs
    assert "<title>north, 10 % wrong: cat $x$, cat $x$: 1.00</title>" in page
    assert "<td>Charité</td>" in page  # the report that was refused
    assert not re.search(r"client [012]\b", page)


def test_what_has_no_place_tells_nothing() -> None:
    assert texts(scatter("p", "", "", [0.25, 0.5], [float("nan"), 2.0], ["a", "b"])) == ["client b: 2, 50.0 % wrong"]
