"""The report: tables by hand, a page that shows what there is and nothing else, and damage that is named."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from run_folders import HOSTILE, make_run, write_lines

from fedsieve.base.errors import DataError
from fedsieve.base.sheets import original
from fedsieve.evaluate.labels import JudgedLabel, labels_csv
from fedsieve.report.bar_plots import noise_bars
from fedsieve.report.canvas import short
from fedsieve.report.curve_plots import Series, curves
from fedsieve.report.folder import Runs, read_run
from fedsieve.report.html import write_report
from fedsieve.report.tables import UNKNOWN, Table, compare_table, duration, paired, paired_table, per_cent, pivot_table
from fedsieve.report.verdicts import exhibit_plots

SECTIONS_OF_A_FULL_RUN = [
    "Accuracy",
    "Clients and classes",
    "Label noise",
    "Classes",
    "Spread over clients",
    "Label precision and recall",
    "Trust in clients",
    "What the method found out",
    "What left each client",
    "Time",
    "Reports that did not count",
    "What became of the labels",
    "Suspicious labels",
    "Settings",
    "How to redo it",
]


# --- tables -----------------------------------------------------------------------------------------------------------


def test_compare_table_gives_mean_and_sample_deviation_over_seeds() -> None:
    rows = [
        {"method": "fedrn", "seed": 0, "test_accuracy_last10": 0.80},
        {"method": "fedavg", "seed": 0, "test_accuracy_last10": 0.70},
        {"method": "fedrn", "seed": 1, "test_accuracy_last10": 0.84},
    ]
    table = compare_table(rows, ["method", "seed"])
    assert table.header == ("method", "n", "Accuracy, last 10 (%)")
    # std of 80 and 84 with ddof 1: sqrt(((-2)^2 + 2^2) / 1) = 2.828...
    assert table.rows == (("fedrn", "2", "82.00 ± 2.83"), ("fedavg", "1", "70.00"))
    assert table.best == {(0, 2)}


def test_compare_table_groups_by_every_setting_but_the_seed_and_keeps_first_appearance() -> None:
    rows = [
        {"method": method, "noise.rate": rate, "seed": seed, "macro_f1": 0.5}
        for seed in (0, 1)
        for rate in (0.4, 0.2)
        for method in ("b", "a")
    ]
    table = compare_table(rows, ["method", "noise.rate", "seed"], ["macro_f1"])
    assert [row[:3] for row in table.rows] == [
        ("b", "0.4", "2"),
        ("b", "0.2", "2"),
        ("a", "0.4", "2"),
        ("a", "0.2", "2"),
    ]
    assert table.best == frozenset(), "where all are equal, none is best"


def scored(method: str, seed: int, value: float, **keys: Any) -> dict[str, Any]:
    return {"method": method, "seed": seed, "test_accuracy_last10": value, "tests_in_mean": 3, **keys}


SCORED = [
    scored(method, seed, value + seed / 100, **{"noise.rate": rate})
    for rate, values in ((0.2, (0.8, 0.7, 0.95)), (0.4, (0.5, 0.6, 0.94)))
    for method, value in zip(("fedavg", "gce", "oracle"), values, strict=True)
    for seed in (0, 1, 2)
]


def test_the_best_is_bold_within_one_setting_and_no_bound_is_best() -> None:
    table = compare_table(SCORED, ["method", "noise.rate"], ["test_accuracy_last10"])
    assert [row[:2] for row in table.rows] == [
        ("fedavg", "0.2"), ("fedavg", "0.4"), ("gce", "0.2"), ("gce", "0.4"),
        ("oracle (bound)", "0.2"), ("oracle (bound)", "0.4"),
    ]  # fmt: skip
    assert table.best == {(0, 3), (3, 3)}
    options = [scored("fedprox", 0, mu, **{"fedprox.mu": mu}) for mu in (0.1, 0.2)] + [scored("fedavg", 0, 0.15)]
    assert compare_table(options, ["method", "fedprox.mu"], ["test_accuracy_last10"]).best == {(1, 3)}


def test_the_mean_of_the_last_tests_says_of_how_many() -> None:
    assert compare_table(SCORED, ["method", "noise.rate"]).header[3] == "Accuracy, last 3 (%)"
    mixed = [*SCORED, scored("fedavg", 5, 0.1) | {"tests_in_mean": 10}]
    assert compare_table(mixed, ["method"]).header[2] == "Accuracy, last 3–10 (%)"


def test_a_pivot_has_methods_by_settings() -> None:
    table = pivot_table(SCORED, ["method", "noise.rate", "seed"])
    assert table is not None
    assert table.header == ("Accuracy, last 3 (%)", "noise.rate=0.2", "noise.rate=0.4")
    assert table.rows[0] == ("fedavg", "81.00 ± 1.00", "51.00 ± 1.00")
    assert [row[0] for row in table.rows] == ["fedavg", "gce", "oracle (bound)"]
    assert table.best == {(0, 1), (1, 2)}
    assert pivot_table(SCORED[:9], ["method"]) is None


def test_paired_differences_have_students_interval() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.random(6), rng.random(6)
    found = paired(dict(enumerate(one)), dict(enumerate(other)))
    assert found is not None
    test = scipy.stats.ttest_rel(one, other)
    low, high = test.confidence_interval(0.95)
    assert (found[0], found[1]) == (6, pytest.approx(np.mean(one - other)))
    assert (found[1] - found[2], found[1] + found[2]) == (pytest.approx(low), pytest.approx(high))
    assert paired({0: 1.0, 1: 2.0}, {1: 1.0, 2: 3.0}) is None
    table = paired_table(SCORED, ["method", "noise.rate"])
    assert table is not None
    assert table.rows[0] == ("noise.rate=0.2", "gce", "fedavg", "3", "-10.00", "-10.00 to -10.00")
    assert [row[1] for row in table.rows] == ["gce", "oracle", "gce", "oracle"]
    assert paired_table([row for row in SCORED if row["seed"] == 0], ["method", "noise.rate"]) is None


def test_latex_has_a_caption_and_a_label() -> None:
    text = Table(("a",), (("1",),)).to_latex("50 % of it", "tab:half")
    assert "\\caption{50 \\% of it}\n\\label{tab:half}\n\\begin{tabular}" in text


def test_the_best_is_the_lowest_where_less_is_better_and_ties_as_printed_are_all_marked() -> None:
    rows = [
        {"method": "a", "seconds": 10.0, "macro_f1": 0.50001},
        {"method": "b", "seconds": 4.0, "macro_f1": 0.50002},
        {"method": "c", "seconds": 7.0, "macro_f1": 0.4},
    ]
    table = compare_table(rows, ["method"], ["seconds", "macro_f1"])
    assert table.best == {(1, 2), (0, 3), (1, 3)}


def test_compare_table_tells_what_is_unknown() -> None:
    rows = [
        {"method": "a", "seed": 0, "label_recall": None, "macro_f1": 0.25, "label_precision": None},
        {"method": "a", "seed": 1, "label_recall": 0.5, "macro_f1": 0.75, "label_precision": float("nan")},
        {"method": "b", "seed": 0, "macro_f1": 0.5},
    ]
    table = compare_table(rows, ["method"], ["macro_f1", "label_recall", "label_precision"])
    assert table.header == ("method", "n", "Macro F1 (%)", "Label recall (%)"), "nobody knows the precision"
    assert table.rows == (("a", "2", "50.00 ± 35.36", "50.00 (n=1)"), ("b", "1", "50.00", UNKNOWN))
    assert table.best == frozenset()


def test_compare_table_of_nothing_is_empty() -> None:
    assert compare_table([], ["method", "seed"]).rows == ()


TABLE = Table(("name", "x (%)"), (("a|b*_c", "1.00 ± 0.10"), ("50% & $2", UNKNOWN)), frozenset({(0, 1)}))


def test_markdown_escapes_and_marks() -> None:
    assert TABLE.to_markdown() == (
        "| name | x (%) |\n| :--- | ---: |\n| a\\|b\\*_c | **1.00 ± 0.10** |\n| 50% & $2 | – |\n"
    )


def test_latex_escapes_and_marks() -> None:
    latex = TABLE.to_latex("Runs with 10% noise")
    assert r"\begin{tabular}{lr}" in latex
    assert r"name & x (\%) \\" in latex
    assert r"a|b*\_c & \textbf{1.00 $\pm$ 0.10} \\" in latex
    assert r"50\% \& \$2 & -- \\" in latex
    assert r"\caption{Runs with 10\% noise}" in latex
    assert [rule in latex for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [True] * 3
    assert TABLE.to_latex().startswith(r"\begin{tabular}")


cells = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)


@settings(max_examples=50)
@given(st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=4))
def test_any_cell_survives_csv_and_stays_in_its_markdown_column(rows: list[tuple[str, str, str]]) -> None:
    table = Table(("a", "b", "c"), tuple(rows))
    read = csv.reader(io.StringIO(table.to_csv(), newline=""))
    assert [tuple(map(original, row)) for row in read] == [
        table.header,
        *(tuple(cell.replace("\r", " ") for cell in row) for row in rows),
    ]
    lines = table.to_markdown().split("\n")[:-1]
    assert len(lines) == 2 + len(rows)
    assert {len(re.sub(r"\\.", "", line).split("|")) for line in lines} == {5}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, UNKNOWN),
        (4.25, "4.2 s"),
        (59.7, "1 min 00 s"),
        (125, "2 min 05 s"),
        (1500, "25 min"),
        (3900, "1 h 05 min"),
    ],
)
def test_duration(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_per_cent() -> None:
    assert (per_cent(0.81256), per_cent(None)) == ("81.26 %", UNKNOWN)


# --- run folders ------------------------------------------------------------------------------------------------------


def _rewrite(path: Path, name: str, values: Any) -> None:
    with np.load(path) as file:
        held = dict(file)
    np.savez(path, allow_pickle=False, **{**held, name: values})


class Page(HTMLParser):
    """What a browser would meet: tags, ids, addresses, headings, table cells and readable text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.alts: list[str] = []
        self.headings: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        values = {name: value or "" for name, value in attrs}
        self.ids += [values["id"]] if "id" in values else []
        self.addresses += [values[name] for name in ("href", "src", "xlink:href") if name in values]
        self.alts += [values.get("aria-label", "")] if tag == "svg" else []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self.tags and self.tags[-1] == "h2" and data.strip():
            self.headings.append(data)


@pytest.fixture(scope="module")
def full_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("full") / "run")


@pytest.fixture(scope="module")
def full_page(full_run: Path) -> str:
    return write_report([full_run], full_run / "report.html").read_text()


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("several")
    runs = [make_run(root / f"{m}-{s}", method=m, seed=s) for m in ("fedrn", "fedavg") for s in (0, 2)]
    return write_report(runs, root / "deep" / "report.html", title="Mine & <yours>").read_text()


def test_a_full_run_shows_every_section(full_page: str) -> None:
    page = Page(full_page)
    assert page.headings == SECTIONS_OF_A_FULL_RUN
    assert all(page.alts), "every plot has a text for those who cannot see it"
    assert "fedsieve run config.yaml" in full_page


def test_exhibits_are_drawn_against_what_is_true(full_page: str) -> None:
    alts = " ".join(Page(full_page).alts)
    # Accuracies of clients 0 and 2, with 0 and 20 % wrong, lie on a falling line; client 1 is unknown.
    assert "The training accuracy against its share of wrong labels, for 2 clients, correlation -1.00." in alts
    assert "The likeness, for each two of 3 clients" in alts
    assert "The votes, for client 0, 0 % wrong, client 1, 10 % wrong, client 2, 20 % wrong." in alts


def test_a_tree_has_its_leaves_in_the_order_in_which_they_join(full_page: str) -> None:
    tree = full_page[full_page.index("A dendrogram: joins, for 3 clients.") :].split("</svg>")[0]
    words = re.findall(r"<text[^>]*>([^<]*)</text>", tree)
    assert words[:3] == ["1", "0", "2"], "what joins first stands side by side"


def test_scores_are_shown_round_by_round(full_page: str) -> None:
    alts = " ".join(Page(full_page).alts)
    assert "The score of each of 3 clients in each of 1 rounds, the cleanest client on top." in alts
    assert "Rank correlation of the clients' scores with their share of right labels, over rounds." in alts


def test_headlines_are_the_numbers_of_the_run(full_page: str) -> None:
    shown = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", full_page))
    assert shown["accuracy, mean of the last 3 tests"] == "75.00 %"
    assert shown["accuracy at the end, of the saved model"] == "90.00 %"
    assert shown["worst client"] == "61.00 %"
    assert shown["MB a client and round"] == "1.00", "4 MB a round over 2 reports, 1 refused and 1 dropped"
    assert shown["labels flagged"] == "6"
    assert shown["rounds"] == "4"
    assert (shown["hardware"], shown["model"], shown["federation"]) == ("two cores", "0123abcd", "hash-of-0")


def test_own_data_are_told_as_they_are_and_not_by_defaults(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", clients=20, noise="none", partition="natural", rounds=4)
    federation = json.loads((run / "federation.json").read_text())
    federation["noise"] = "none"
    for client in federation["clients"]:
        client["noise_realised"] = None
    (run / "federation.json").write_text(json.dumps(federation | {"transitions": None}))
    words = " ".join(Page(write_report([run], tmp_path / "page.html").read_text()).words)
    assert "clients 3 · partition natural · noise as delivered" in words
    assert "; noise as delivered" in words
    assert "20 (does not apply: the data name 3)" in words


def test_rounds_of_a_method_are_explained_where_they_stand(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=3)
    words = " ".join(Page(write_report([run], tmp_path / "page.html").read_text()).words)
    assert "rounds (rounds=3; stages: pre 2, train 2)" in words


def test_each_class_has_its_accuracy_and_what_it_is_mistaken_for(full_page: str) -> None:
    words = " ".join(" ".join(Page(full_page).words).split())
    assert "cat $x$ 4 100.00 %" in words
    assert re.search(r"3 33\.33 % cat \$x\$ \(2\)", words)
    assert any("Confusion matrix of 2 classes: 5 of 7 test samples" in alt for alt in Page(full_page).alts)


def test_chosen_settings_come_first_and_the_others_are_folded(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=4, lr=0.3)
    federation = json.loads((run / "federation.json").read_text())
    (run / "federation.json").write_text(json.dumps(federation | {"chosen": ["lr", "method"]}))
    page = write_report([run], tmp_path / "page.html").read_text()
    settings = page[page.index("<h2>Settings</h2>") :]
    open_part, _, folded = settings.partition("<details>")
    assert "<td>lr</td>" in open_part
    assert "<td>seed</td>" not in open_part
    assert "<td>seed</td>" in folded
    assert "All other settings" in folded


def test_values_are_told_when_somebody_points_at_them(full_page: str) -> None:
    assert "<title>fedrn, round 4: 90.00 %</title>" in full_page
    assert full_page.count("<title>fedrn, round ") >= 3


def test_the_numbers_of_curves_are_a_table(full_page: str) -> None:
    words = " ".join(" ".join(Page(full_page).words).split())
    assert "The numbers of the curves round fedrn 1 60.00 % 3 80.00 % 4 90.00 %" in words


def test_conversations_are_measured_against_an_exchange_of_the_model(full_page: str) -> None:
    assert "Conversations took: " in full_page
    assert "3.00 MB or 1.50 exchanges." in full_page


def suspicious(page: str) -> str:
    return page[page.index("<h2>Suspicious labels") : page.index("<h2>Settings")]


def test_suspicious_labels_are_shown_by_owner_with_their_samples(full_page: str) -> None:
    section = suspicious(full_page)
    assert "6 of 30 labels are flagged, at 3 of 3 owners." in section
    assert re.findall("<h3>(.*?)</h3>", section) == [f"ward {k}: 2 of 10 flagged" for k in range(3)]
    assert re.findall(r"<span>(x\[\d+\])</span>", section) == [f"x[{row}]" for row in (0, 3, 1, 4, 2, 5)]
    assert section.count("&gt; → cat $x$</span>") == 6
    assert "<span>score 0.033</span>" in section
    pictures = re.findall('<img src="data:image/png;base64,(.*?)" alt="(.*?)">', section)
    assert [alt for _, alt in pictures][:2] == ["The sample x[0]", "The sample x[3]"]
    with Image.open(io.BytesIO(base64.b64decode(pictures[0][0]))) as picture:
        assert (picture.size, picture.mode) == ((4, 4), "RGB")
        assert picture.getpixel((0, 0)) == (7, 7, 7)


def many_labels(folder: Path, flagged: int) -> Path:
    """Twelve owners of 15 labels each, so many of them flagged without a suggestion."""
    judged = [
        JudgedLabel(f"o{k}", f"t.csv:{row}", "cat", "" if row < flagged else "cat", 0.1, row < flagged, "x", "", k, row)
        for k in range(12)
        for row in range(15)
    ]
    (folder / "labels.csv").write_bytes(labels_csv(judged))
    return folder


def test_of_many_suspicious_labels_some_are_shown(tmp_path: Path) -> None:
    """And where the samples are elsewhere, all the same."""
    folder = many_labels(make_run(tmp_path / "run"), 14)
    (folder / "suspects.npz").unlink()
    section = suspicious(write_report([folder], tmp_path / "r.html").read_text())
    assert section.count("<h3>") == 10
    assert section.count("<li>") == 120
    assert "<img" not in section
    assert "at most 12 of an owner, of the 10 owners with the most." in section
    assert section.count("<span>cat → ?</span>") == 120


def test_no_suspicious_label_is_said(tmp_path: Path) -> None:
    text = write_report([many_labels(make_run(tmp_path / "run"), 0)], tmp_path / "r.html").read_text()
    assert "0 of 180 labels are flagged, at 0 of 12 owners." in suspicious(text)
    assert "<h3>" not in text
    assert "What became of the labels" not in text


def test_a_run_that_is_not_tested_says_so(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    described = json.loads((folder / "federation.json").read_text())
    (folder / "federation.json").write_text(json.dumps(described | {"test": 0}))
    assert "Not tested: run. No rows were kept for it" in write_report([folder], tmp_path / "r.html").read_text()


def test_a_bare_run_shows_only_what_it_knows(tmp_path: Path) -> None:
    text = write_report([make_run(tmp_path / "bare", full=False)], tmp_path / "report.html").read_text()
    assert Page(text).headings == ["Accuracy", "Settings", "How to redo it"]
    assert "Not finished: bare." in text
    assert "76.67 %" in text, "the mean of the known rounds, 60, 80 and 90"


def test_a_run_without_a_round_still_has_a_page(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "new", full=False)
    (folder / "metrics.jsonl").write_text("")
    assert Page(write_report([folder], tmp_path / "r.html").read_text()).headings == ["Settings", "How to redo it"]


def test_a_comparison_shows_every_method_and_says_that_the_data_differ(comparison: str) -> None:
    page = Page(comparison)
    shown = [one for one in SECTIONS_OF_A_FULL_RUN[1:] if one != "Classes"]
    assert page.headings == [SECTIONS_OF_A_FULL_RUN[0], "Comparison", "Paired differences", *shown]
    assert comparison.count("76.00 ± 1.41") == 2, "75 and 77 per cent, for each of the two methods"
    assert "The runs do not share one federation" in comparison
    assert "needs no more than sums over clients: fedavg." in comparison
    assert "what single clients send: fedrn." in comparison
    assert "Mine &amp; &lt;yours&gt;" in comparison


def test_a_bound_is_never_the_best_and_the_command_is_the_comparisons(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"{m}{s}", method=m, seed=s) for m in ("oracle", "fedrn", "gce") for s in (0, 1)]
    for run, value in zip(runs, (0.9, 0.9, 0.7, 0.72, 0.6, 0.61), strict=True):
        summary = json.loads((run / "summary.json").read_text())
        (run / "summary.json").write_text(json.dumps(summary | {"test_accuracy_last10": value}))
    (tmp_path / "comparison.yaml").write_text("method: oracle,fedrn,gce\nseed: [0, 1]\nnoise.map: {1: 2}\nout: x\n")
    words = " ".join(Page(write_report(runs, tmp_path / "page.html").read_text()).words)
    assert re.search(r"best on average\s+fedrn", words)
    assert re.search(r"bound \(oracle\)\s+90\.00 %", words)
    assert "fedsieve compare method=oracle,fedrn,gce seed=0,1 'noise.map={1: 2}' out=NEW_FOLDER" in words
    assert "oracle (bound)" in words
    assert "Paired differences" in words
    assert "-10.50" in words


def test_of_several_settings_the_best_is_named_within_each(tmp_path: Path) -> None:
    """The first is better at both rates, though the second is better at the easy one than the first at the hard one."""
    cells = [("fedrn", 0.2, 0.8), ("fedrn", 0.6, 0.6), ("gce", 0.2, 0.7), ("gce", 0.6, 0.5), ("oracle", 0.2, 0.9)]
    runs = [make_run(tmp_path / f"{m}{rate}", method=m, **{"noise.rate": rate}) for m, rate, _ in cells]
    for run, (_, _, value) in zip(runs, cells, strict=True):
        summary = json.loads((run / "summary.json").read_text())
        (run / "summary.json").write_text(json.dumps(summary | {"test_accuracy_last10": value}))
    words = " ".join(Page(write_report(runs, tmp_path / "page.html").read_text()).words)
    assert re.search(r"best in most settings\s+fedrn \(2 of 2\)", words)
    assert "best on average" not in words


def test_nothing_is_loaded_from_elsewhere_and_ids_are_unique(full_page: str, comparison: str) -> None:
    for text in (full_page, comparison):
        page = Page(text)
        assert "http" not in text
        assert not {"script", "link", "iframe", "object"} & set(page.tags)
        assert all(address.startswith(("#", "data:image/png;base64,")) for address in page.addresses)
        assert len(page.ids) == len(set(page.ids))
        targets = set(re.findall(r"url\(#(.*?)\)", text)) | {a[1:] for a in page.addresses if a.startswith("#")}
        assert targets <= set(page.ids), "every reference has its definition"


def test_hostile_names_are_text(full_page: str) -> None:
    assert "<script" not in full_page
    assert "a &lt;note&gt;" in full_page
    assert "loss is &lt;not&gt; finite" in full_page
    page = Page(full_page)
    assert any(HOSTILE in words for words in page.words), "in the table of labels, whole"
    assert any(words.strip() == short(HOSTILE, 18) for words in page.words), "beside the heat map, cut to fit"
    assert ">cat $x$</text>" in full_page, "a dollar is no formula"
    assert page.tags.count("svg") == full_page.count("</svg>")


def test_the_same_folder_gives_the_same_bytes(full_run: Path, full_page: str, tmp_path: Path) -> None:
    assert write_report([full_run], tmp_path / "again.html").read_bytes() == full_page.encode()


Damage = Callable[[Path], object]


@pytest.mark.parametrize(
    ("file", "damage", "place"),
    [
        ("metrics.jsonl", lambda p: p.write_text('{"round": 1}\n{"round": 2, "test_acc'), "metrics.jsonl, line 2: "),
        ("metrics.jsonl", lambda p: p.write_text('\n\n{"test_accuracy": 0.5}\n'), "line 3: round: Field required"),
        ("metrics.jsonl", lambda p: p.write_text('{"round": 1, "test_accuracy": "high"}'), "line 1: test_accuracy: "),
        ("metrics.jsonl", lambda p: p.write_bytes(b"\xff\xfe"), "metrics.jsonl: cannot be read"),
        ("metrics.jsonl", lambda p: p.write_text("[1, 2]\n"), "metrics.jsonl, line 1: "),
        ("metrics.jsonl", Path.unlink, "metrics.jsonl: not found"),
        ("config.yaml", Path.unlink, "config.yaml: not found"),
        ("config.yaml", lambda p: p.write_text("method: [fedavg\n"), "config.yaml: "),
        ("config.yaml", lambda p: p.write_text("just words"), "config.yaml: is not a mapping"),
        ("clients.jsonl", lambda p: p.write_text("[1, 2]\n"), "clients.jsonl, line 1: "),
        ("federation.json", lambda p: p.write_text('{"n_classes": 2, "transitions": [[1, 2]]}'), "federation.json: "),
        ("summary.json", lambda p: p.write_text("{"), "summary.json: "),
        ("labels.csv", lambda p: p.write_text(p.read_text() + "a,1,x,y,low,1,z\n"), "labels.csv, line 32: score: "),
        ("labels.csv", lambda p: p.write_text("owner,where\n0,1\n"), "labels.csv, line 2: given: Field required"),
        ("labels.csv", lambda p: p.write_text("owner,where\n0," + 200_000 * "1"), "field larger than field limit"),
        ("exhibits.npz", lambda p: p.write_bytes(p.read_bytes()[:-30]), "exhibits.npz: cannot be read"),
        ("exhibits.npz", lambda p: _rewrite(p, "1", np.ones(3)), "an exhibit is not of its kind"),
    ],
)  # fmt: skip
def test_damage_is_named(tmp_path: Path, file: str, damage: Damage, place: str) -> None:
    folder = make_run(tmp_path / "run")
    damage(folder / file)
    with pytest.raises(DataError) as caught:
        write_report([folder], tmp_path / "report.html")
    assert caught.value.code == "FS311"
    assert place in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "report.html").exists()


def test_rounds_that_are_lost_are_told(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", full=False)
    write_lines(folder / "metrics.jsonl", [{"round": number, "test_accuracy": 0.5} for number in (1, 4)])
    page = write_report([folder], tmp_path / "report.html").read_text()
    assert "run: there is no row of rounds 2, 3. Sums and means lack them." in page


def test_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="FS311"):
        write_report([], tmp_path / "report.html")


# --- what differs, and means over seeds -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runs", "labels"),
    [
        ([{"method": "a", "seed": 0}, {"method": "a", "seed": 1}], ["a"]),
        ([{"method": "a"}, {"method": "b", "b.mu": 0.1}], ["a", "b"]),
        ([{"method": "b", "b.mu": 0.1}, {"method": "b", "b.mu": 1}], ["b.mu=0.1", "b.mu=1"]),
        ([{"method": "a", "lr": 1}, {"method": "b", "lr": 2}], ["a, lr=1", "b, lr=2"]),
    ],
)
def test_groups_are_named_by_what_tells_them_apart(
    tmp_path: Path, runs: list[Mapping[str, Any]], labels: list[str]
) -> None:
    folders = [make_run(tmp_path / str(i), full=False, **keys) for i, keys in enumerate(runs)]
    assert list(Runs(tuple(map(read_run, folders))).groups) == labels


def test_results_of_an_unfinished_run_come_from_its_rounds(tmp_path: Path) -> None:
    numbers = read_run(make_run(tmp_path / "run", full=False)).numbers
    assert numbers["test_accuracy_last10"] == pytest.approx((0.6 + 0.8 + 0.9) / 3)
    assert numbers["test_accuracy_best"] == pytest.approx(0.9)
    assert numbers["worst_client"] is None


def test_the_mean_of_seeds_stands_where_all_of_them_are_known() -> None:
    assert Series("a", 0, ({1: 0.2, 2: 0.4, 3: 0.6}, {1: 0.4, 3: 0.8})).mean() == pytest.approx({1: 0.3, 3: 0.7})


@pytest.mark.parametrize(
    ("values", "low", "high"), [((1.0, 1.0), 0, 100), ((0.0, 0.0), 0, 10), ((-0.9, 0.9), -100, 100)]
)
def test_curves_show_no_value_that_cannot_be(values: tuple[float, float], low: float, high: float) -> None:
    plot = curves("c", "", "per cent", [Series("a", 0, (dict(enumerate(values, 1)),))], {})
    marks = [text.replace("\N{MINUS SIGN}", "-") for text in re.findall(r"<text[^>]*>([^<]*)</text>", plot.svg)]
    numbers = [float(mark) for mark in marks if re.fullmatch(r"-?[0-9.]+", mark)]
    assert len(numbers) > 4
    assert min(numbers) >= low
    assert max(numbers) <= high


def test_clients_that_count_alike_are_not_drawn(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "alike")
    rows = [{"round": r, "client": c, "status": "reported", "weight": 0.5} for r in (1, 2) for c in (0, 1)]
    write_lines(folder / "clients.jsonl", rows)
    page = Page(write_report([folder], tmp_path / "report.html").read_text())
    assert not any(alt.startswith("Mean weight") for alt in page.alts)


def test_runs_that_tested_no_client_show_no_spread(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / method, method=method, full=False) for method in ("fedavg", "gce")]
    page = Page(write_report(folders, tmp_path / "report.html").read_text())
    assert "Accuracy" in page.headings
    assert "Spread over clients" not in page.headings


def test_verdicts_are_held_against_a_truth_that_is_known(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    against = "The training accuracy against its share of wrong labels"
    assert against in exhibit_plots(read_run(folder), 0)[0].svg
    federation = json.loads((folder / "federation.json").read_text())
    for client in federation["clients"]:
        client |= {"noise_nominal": None, "noise_realised": None}
    (folder / "federation.json").write_text(json.dumps(federation))
    shown = exhibit_plots(read_run(folder), 0)
    assert len(shown) == 3
    assert not any(against in plot.svg for plot in shown)


def test_of_many_confusions_the_cleanest_and_the_noisiest_clients_are_shown(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    federation = json.loads((folder / "federation.json").read_text())
    federation["clients"] = [
        {"client": c, "rows": 10, "classes": [5, 5], "noise_nominal": 0.2, "noise_realised": c / 20} for c in range(14)
    ]
    (folder / "federation.json").write_text(json.dumps(federation))
    index = json.dumps([{"part": "Scaffold", "kind": "confusions", "title": "votes"}])
    arrays = {"0": np.tile(np.eye(2), (14, 1, 1)), "0/clients": np.arange(14)}
    np.savez(folder / "exhibits.npz", allow_pickle=False, index=np.array(index), **arrays)
    (plot,) = exhibit_plots(read_run(folder), 0)
    drawn = re.findall(r"client (\d+), \d+ % wrong", plot.svg)
    assert {*map(int, drawn)} == {*range(6), *range(8, 14)}


def test_bars_of_very_many_clients_are_one_outline() -> None:
    def drawn(count: int) -> int:
        names = [str(i) for i in range(count)]
        return noise_bars("n", "", [0.25] * count, [0.2] * count, names).svg.count("<path")

    hundred, more = drawn(100), drawn(101)
    assert hundred > 100
    assert more < hundred - 90


@pytest.mark.parametrize(
    ("labelled", "said", "drawn"),
    [
        ([10, 10, 10], None, True),
        ([10, 4, 0], "14 of 30 rows have a label", True),
        ([0, 0, 0], "the clients have no labels", False),
    ],
)
def test_missing_labels_are_told(tmp_path: Path, labelled: list[int], said: str | None, drawn: bool) -> None:
    folder = make_run(tmp_path / "run")
    file = folder / "federation.json"
    federation = json.loads(file.read_text())
    for client, count in zip(federation["clients"], labelled, strict=True):
        client |= {"labelled": count, "classes": [count // 2, count // 2]}
    file.write_text(json.dumps(federation))
    page = Page(write_report([folder], tmp_path / "report.html").read_text())
    told = [fact for words in page.words for fact in words.split("; ") if "label" in fact and "of each" not in fact]
    assert any(said in fact for fact in told) if said else not any("have a label" in fact for fact in told)
    assert any("Given labels of each class" in alt for alt in page.alts) == drawn


def test_short_names_fit_on_one_line() -> None:
    assert short("a\n b\x00c") == "a b c"
    assert short("x" * 30, 10) == "x" * 9 + "…"


@pytest.mark.parametrize(("spread", "said"), [(0.01, True), (0.5, False)])
def test_features_that_collapsed_are_told(tmp_path: Path, spread: float, said: bool) -> None:
    folder = make_run(tmp_path / "run", full=False)
    write_lines(folder / "metrics.jsonl", [{"round": 1, "feature_spread": spread, "feature_rank": 9.0}])
    page = write_report([folder], tmp_path / "page.html").read_text()
    assert ("run: the features collapsed." in page) is said
