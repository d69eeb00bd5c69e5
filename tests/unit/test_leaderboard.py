"""Leaderboards: ranks by hand, pages whose other text stays, comparisons that cannot stand side by side."""

import math

import pytest
import yaml
from typer.testing import CliRunner

import fedsieve
from fedsieve.base.errors import ConfigError, DataError
from fedsieve.base.seal import seal
from fedsieve.cli.app import app
from fedsieve.report.leaderboard import (
    Board,
    Column,
    accuracy_table,
    board_text,
    column_table,
    cost_table,
    knows_truth,
    shared_settings,
    write_leaderboard,
)
from fedsieve.runs.leaderboard import read_board, read_column

SETTINGS = {"data": "embedded", "clients": 4, "noise": "pair", "noise.rate": 0.4, "out": "x", "fedrn.k": 2}


def row(method, seed, accuracy, **more):
    return {
        "key": f"{method}{seed}{more}", "folder": f"{method}-{seed}", "method": method, "seed": seed,
        "test_accuracy_last10": accuracy, "seconds": 2.0, "bytes_up": 10**6, "bytes_down": 2 * 10**6,
        "federation": f"data{seed}", **more,
    }  # fmt: skip


def comparison(folder, rows, **settings):
    folder.mkdir(parents=True)
    (folder / "results.jsonl").write_text("".join(f"{seal(one)}\n" for one in rows))
    asked = {key: value for key, value in (SETTINGS | settings).items() if value is not None}
    (folder / "comparison.yaml").write_text(yaml.safe_dump(asked))
    return folder


def board():
    one = {
        "fedavg": (row("fedavg", 0, 0.5), row("fedavg", 1, 0.7)),
        "gce": (row("gce", 0, 0.65),),
        "moon": (row("moon", 0, 0.6),),
        "oracle": (row("oracle", 0, 0.9),),
    }
    other = {"fedavg": (row("fedavg", 0, 0.8),), "gce": (row("gce", 0, 0.8),), "fedavg, right labels": (one["gce"][0],)}
    return Board("mine", (Column("a", {"data": "x", "lr": "1"}, one), Column("b", {"data": "y", "lr": "1"}, other)))


def test_ranks_by_hand():
    """Equal means share a place, bounds have none."""
    a, b = board().columns
    assert a.means == pytest.approx({"fedavg": 60.0, "gce": 65.0, "moon": 60.0, "oracle": 90.0})
    assert a.ranks == {"gce": 1, "fedavg": 2, "moon": 2}
    assert b.ranks == {"fedavg": 1, "gce": 1}


def test_who_lacks_a_column_stands_after_the_others_and_bounds_last():
    assert board().methods == ["gce", "fedavg", "moon", "oracle", "fedavg, right labels"]
    assert board().mean_rank("fedavg") == 1.5
    assert board().mean("gce") == pytest.approx(72.5)
    assert knows_truth("audit+oracle")
    assert not knows_truth("fedavg")


def test_the_tables_by_hand():
    table = accuracy_table(board())
    assert table.header == ("method", "mean", "a", "b")
    assert table.rows == (
        ("gce", "72.5", "65.0", "80.0"),
        ("fedavg", "70.0", "60.0 ± 14.1", "80.0"),
        ("moon", "–", "60.0", "–"),
        ("oracle (bound)", "–", "90.0", "–"),
        ("fedavg, right labels (bound)", "–", "–", "65.0"),
    )
    assert table.best == {(0, 1), (0, 2), (0, 3), (1, 3)}
    costs = cost_table(board(), {"gce": "client labels"})
    assert costs.rows[0] == ("gce", "1.0", "1, 1", "2.0", "3.0", "client labels")
    assert costs.rows[2] == ("moon", "2.0", "2, –", "2.0", "3.0", "–")
    assert costs.rows[3][1:3] == ("–", "–")
    assert column_table(board()).rows == (("a", "x"), ("b", "y"))
    assert shared_settings(board()) == "lr=1"


def test_columns_that_do_not_differ_need_no_table():
    one = Board("x", (Column("a", {"lr": "1"}, {"gce": (row("gce", 0, 0.6),)}),))
    assert column_table(one) is None
    text = board_text(one, {})
    assert text.startswith("In all columns: `lr=1`.\n\nAccuracy in per cent")
    assert text.count("| method |") == 2


def test_where_nobody_has_all_columns_no_mean_is_best():
    one = Column("a", {}, {"gce": (row("gce", 0, 0.6),)})
    other = Column("b", {}, {"moon": (row("moon", 0, 0.5),)})
    assert accuracy_table(Board("x", (one, other))).best == {(0, 2), (1, 3)}


def test_costs_are_means_of_columns():
    """Seeds of one column count together as much as the one of another."""
    runs = {"fedavg": (row("fedavg", 0, 0.5, seconds=1.0), row("fedavg", 1, 0.5, seconds=3.0))}
    two = Board("x", (Column("a", {}, runs), Column("b", {}, {"fedavg": (row("fedavg", 0, 0.5, seconds=8.0),)})))
    assert two.cost("fedavg", lambda one: one["seconds"]) == 5.0
    assert two.cost("fedavg", lambda one: None) is None


def test_a_comparison_without_noise_is_a_bound(tmp_path):
    comparison(tmp_path / "pairs", [row("fedavg", 0, 0.6)])
    comparison(tmp_path / "right", [row("fedavg", 0, 0.8, federation="other")], noise="none", **{"noise.rate": None})
    comparison(tmp_path / "alone", [row("gce", 0, 0.7)], noise="none", clients=9)
    found = read_board(tmp_path)
    assert [column.name for column in found.columns] == ["pairs", "alone"]
    assert set(found.columns[0].runs) == {"fedavg", "fedavg, right labels"}
    assert set(found.columns[1].runs) == {"gce"}


def test_a_column_names_no_place_and_no_options_of_methods(tmp_path):
    column = read_column(comparison(tmp_path / "a", [row("fedavg", 0, 0.6)], seed=[0, 1], method="fedavg"))
    assert column.settings == {"data": "embedded", "clients": "4", "noise": "pair", "noise.rate": "0.4"}


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([row("fedavg", 0, 0.6), row("gce", 0, 0.6, federation="others")], "gce and fedavg had other data with seed 0"),
        ([row("gce", 2, 0.6), row("gce", 2, 0.7, x=1)], "gce was run twice with seed 2"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path, rows, told):
    with pytest.raises(DataError, match="FS314") as found:
        read_column(comparison(tmp_path / "a", rows))
    assert told in str(found.value)


def test_a_folder_without_comparisons_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds no comparison"):
        read_board(tmp_path)
    with pytest.raises(ConfigError, match="FS002"):
        fedsieve.leaderboard()


def test_runs_that_were_not_tested_cannot_be_ranked(tmp_path):
    comparison(tmp_path / "a", [row("fedavg", 0, None), row("oracle", 0, 0.9)])
    with pytest.raises(DataError, match="nothing to rank"):
        read_board(tmp_path)


def test_a_board_may_have_any_name(tmp_path):
    comparison(tmp_path / "{x} (1)" / "a", [row("fedavg", 0, 0.6)])
    for _ in range(2):
        page, _ = write_leaderboard([read_board(tmp_path / "{x} (1)")], {}, tmp_path)
    assert page.read_text().count("| fedavg |") == 2


@pytest.mark.parametrize("text", ["[1, 2]", "{a: [", None])
def test_damaged_settings_are_refused(tmp_path, text):
    file = comparison(tmp_path / "a", [row("fedavg", 0, 0.6)]) / "comparison.yaml"
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(DataError, match="Start the comparison again"):
        read_column(tmp_path / "a")


def test_a_damaged_row_is_refused(tmp_path):
    file = comparison(tmp_path / "a", [row("fedavg", 0, 0.6)]) / "results.jsonl"
    file.write_text(file.read_text().replace("0.6", "0.9"))
    with pytest.raises(DataError, match="line 1"):
        read_board(tmp_path)


@pytest.mark.parametrize(
    "wrong", [{"test_accuracy_last10": 1.2}, {"seconds": math.inf}, {"bytes_up": -1}, {"seed": "x"}, {"method": ""}]
)
def test_a_number_out_of_its_range_is_refused(tmp_path, wrong):
    comparison(tmp_path / "a", [row("fedavg", 0, 0.6) | wrong])
    with pytest.raises(DataError, match="FS311") as found:
        read_board(tmp_path)
    assert next(iter(wrong)) in str(found.value)


def test_other_text_of_the_page_stays(tmp_path):
    page, html = write_leaderboard([board()], {}, tmp_path)
    first = page.read_text()
    assert "| gce | **72.5** | **65.0** | **80.0** |" in first
    page.write_text(first.replace("# Leaderboard\n", "# Ours\n\nWhat we make of it.\n") + "\nThe end.\n")
    write_leaderboard([board()], {"gce": "client labels"}, tmp_path)
    second = page.read_text()
    assert second.startswith("# Ours\n\nWhat we make of it.\n")
    assert second.endswith("\nThe end.\n")
    assert second.count("| gce |") == 2
    assert "<script" not in html.read_text()


def test_the_markdown_may_lie_elsewhere(tmp_path):
    page, html = write_leaderboard([board()], {}, tmp_path / "html", tmp_path / "text" / "mine.md")
    assert (page, html) == (tmp_path / "text" / "mine.md", tmp_path / "html" / "leaderboard.html")
    assert [file.name for file in html.parent.iterdir()] == ["leaderboard.html"]
    assert "| gce |" in page.read_text()


def test_a_page_without_a_place_is_left_alone(tmp_path):
    (tmp_path / "leaderboard.md").write_text("my notes\n")
    with pytest.raises(DataError, match="'<!-- board mine -->'"):
        write_leaderboard([board()], {}, tmp_path)
    assert (tmp_path / "leaderboard.md").read_text() == "my notes\n"


def test_from_runs_to_the_page(tmp_path):
    settings = {"method": "fedavg,gce", "clients": 3, "rounds": 1, "epochs": 1, "model": "mlp", "lr": 0.1}
    for noise in ({"noise": "pair", "noise.rate": 0.4}, {"noise": "none"}):
        fedsieve.compare(**settings, **noise, out=str(tmp_path / "boards" / noise["noise"]), jobs=2, quiet=True)
    told = CliRunner().invoke(app, ["leaderboard", str(tmp_path / "boards"), "--out", str(tmp_path / "page")])
    assert told.exit_code == 0, told.output
    assert "| fedavg, right labels (bound) |" in told.output
    assert "boards: ranks and costs" in (tmp_path / "page" / "leaderboard.html").read_text()
    again = fedsieve.leaderboard(tmp_path / "boards", out=tmp_path / "page")
    assert again.table in (tmp_path / "page" / "leaderboard.md").read_text()
