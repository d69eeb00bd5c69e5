"""Every file of experiments/ describes runs that exist: no key, value or method in it has gone out of use."""

from pathlib import Path

import pytest
import yaml

from fedsieve.methods import METHODS, canonical
from fedsieve.runs.comparison import cells
from fedsieve.testing.profile import profile

FILES = sorted(Path(__file__).parents[2].glob("experiments/**/*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_run_of_the_file_resolves(file):
    settings = yaml.safe_load(file.read_text())
    found = cells(settings)
    methods = settings["method"] if isinstance(settings["method"], list) else [settings["method"]]
    assert {cell.config.top.method for cell in found} == {canonical(method) for method in methods}
    assert len({cell.key for cell in found}) == len(found)


@pytest.mark.parametrize("file", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_file_says_how_it_is_run_and_where_results_go(file):
    head = [line for line in file.read_text().splitlines() if line.startswith("#")]
    assert any(
        line.startswith(("# fedsieve compare ", "# fedsieve run "))
        and f" experiments/{file.relative_to(FILES[0].parents[0]).as_posix()}" in line
        for line in head
    )
    assert yaml.safe_load(file.read_text())["out"].startswith("runs/")


def test_the_full_table_has_the_papers_columns():
    settings = yaml.safe_load((FILES[0].parent / "fedrn" / "table2-symmetric.yaml").read_text())
    found = [cell for cell in cells(settings) if (cell.config.top.method, cell.config.top.seed) == ("fedrn", 0)]
    columns = {
        tuple(cell.config.flat().get(key) for key in ("partition", "partition.shards", "noise.high")) for cell in found
    }
    parts = [("shards", 2), ("shards", 5), ("dirichlet", None), ("dirichlet-fedrn", None)]
    assert columns == {(*part, high) for part in parts for high in (0.4, 0.8)}


FULL = [file for file in FILES if file.parent.name == "fedrn" and "cpu" not in file.stem]


@pytest.mark.parametrize("file", FULL, ids=lambda path: path.stem)
def test_the_full_size_is_what_the_authors_ran(file):
    """Crops and flips, and their net's normalisation by the batch, which nothing is kept of."""
    for cell in cells(yaml.safe_load(file.read_text())):
        top = cell.config.top
        assert (top.augment, top.lr, top.momentum, top.batch, top.epochs) == ("weak", 0.01, 0.5, 50, 5)
        assert top.norm == ("batch" if top.model == "cnn4" else "average")


@pytest.mark.parametrize("data", ["mnist", "cifar10", "cifar100"])
def test_feddss_tables_rest_on_three_seeds_and_either_fedavg(data):
    settings = yaml.safe_load((FILES[0].parent / "fedds" / f"table4-5-{data}.yaml").read_text())
    found = [cell.config for cell in cells(settings)]
    assert {config.top.seed for config in found} == {0, 1, 2}
    plain = {config.flat().get("fedavg.weights") for config in found if config.top.method == "fedavg"}
    assert plain == {"size", "equal"}
    others = [config.top for config in found if config.top.method == "fedds"]
    assert len(others) == 3 * 3, "three seeds, three partitions, and no more for what concerns FedAvg alone"


K_SIMILARITY = [file for file in FILES if file.parent.name == "k-similarity" and "cpu" not in file.stem]


@pytest.mark.parametrize("file", K_SIMILARITY, ids=lambda path: path.stem)
def test_k_similarity_s_tables_share_one_protocol(file):
    """Only FedLN-AKD has a learning rate of its own."""
    for cell in cells(yaml.safe_load(file.read_text())):
        top = cell.config.top
        assert (top.batch, top.epochs, top.momentum, top.weight_decay, top.fraction) == (50, 3, 0.0, 3e-4, 0.1)
        assert top.lr == (0.1 if top.method == "fedln-akd" else 0.01)


@pytest.mark.parametrize("data", ["cifar10", "cifar100", "pathmnist", "mura"])
def test_k_similarity_s_table_2_has_the_papers_rows_and_columns(data):
    folder = FILES[0].parent / "k-similarity"
    found = [cell.config.flat() for cell in cells(yaml.safe_load((folder / f"table2-{data}.yaml").read_text()))]
    columns = {(flat["method"], flat["noise.rho"], flat["noise.tau"], flat["seed"]) for flat in found}
    rows = ("fedavg", "symce", "logitclip", "fednoro", "fedcorr", "ksim")
    noises = [(rho, tau) for rho in (0.7, 0.85, 1.0) for tau in (0.2, 0.5)]
    assert columns == {(row, *noise, seed) for row in rows for noise in noises for seed in (0, 1, 2)}
    assert len(found) == len(columns)


LEADERBOARD = [file for file in FILES if file.parent.name == "leaderboard"]


def test_the_leaderboard_has_every_method_that_learns_from_the_clients_labels():
    """And all of them alike in each column."""
    learns = {name for name in METHODS if "client labels" in profile(name).needs and name != "ce"}
    for file in LEADERBOARD:
        assert set(yaml.safe_load(file.read_text())["method"]) == learns, file.stem


def test_the_leaderboard_s_columns_share_one_budget():
    assert len(LEADERBOARD) == 8
    budgets = {
        tuple(yaml.safe_load(file.read_text())[key] for key in ("model", "clients", "fraction", "rounds", "epochs"))
        for file in LEADERBOARD
    }
    assert budgets == {("cnn-lite", 20, 0.5, 20, 2)}
