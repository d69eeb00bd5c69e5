"""The setting in which labels are the server's alone: its sets, their noise, and how they are described."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fedsieve import run
from fedsieve.base.errors import ConfigError, DataError
from fedsieve.data.dealing import even_order
from fedsieve.data.federation import describe
from fedsieve.data.inspection import as_text
from fedsieve.data.noise import transition_test
from fedsieve.data.truth import GroundTruth
from fedsieve.settings.config import resolve
from fedsieve.settings.splitting import federation_of

CLASSES = 10
CIFAR = {9: 1, 2: 0, 4: 7, 3: 5, 5: 3}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Ten classes, of which the last has few rows."""
    labels = np.repeat(np.arange(CLASSES), [600] * 9 + [60])
    path = tmp_path_factory.mktemp("data") / "ten.npz"
    samples = np.zeros((len(labels), 2), np.float32)
    np.savez(path, x_train=samples, y_train=labels, x_test=samples[:20], y_test=labels[:20])
    return str(path)


def server_of(table, **keys):
    """A federation whose clients have no labels, and its truth."""
    settings = {"data": table, "clients": 3, "client_labels": False, **keys}
    return federation_of(resolve(settings))


def matrix(rows):
    """A transition matrix: the identity but for these rows."""
    made = np.eye(CLASSES)
    for row, values in rows.items():
        made[row] = values
    return made


def one(rate, towards):
    row = np.zeros(CLASSES)
    row[towards] = rate
    return row


SYMMETRIC = np.full((CLASSES, CLASSES), 0.4 / 9) + np.eye(CLASSES) * (0.6 - 0.4 / 9)
NEXT = np.eye(CLASSES) * 0.6 + np.roll(np.eye(CLASSES), 1, axis=1) * 0.4
ASYMMETRIC = matrix({source: one(0.6, source) + one(0.4, wrong) for source, wrong in CIFAR.items()})


@pytest.mark.parametrize(
    ("noise", "options", "expected"),
    [
        ("symmetric", {}, SYMMETRIC),
        ("pair", {}, NEXT),
        ("asymmetric", {"map": "cifar10-two-way"}, ASYMMETRIC),
    ],
)
def test_the_servers_own_noise(table, noise, options, expected):
    """The transition matrices of FedCR's protocol at 40 %; row 0 of the symmetric one is 0.6 and nine times 0.0444."""
    assert SYMMETRIC[0].tolist() == pytest.approx([0.6] + [0.044444444444444446] * 9)
    assert (NEXT[0, 1], NEXT[9, 0]) == (0.4, 0.4)
    keys = {"server.noisy": 5000, "server.noisy_rate": 0.4, "server.noise": noise}
    federation, truth = server_of(table, **keys, **{"server.noise_options": options | {"count": "bernoulli"}})
    counts = np.zeros((CLASSES, CLASSES), np.int64)
    np.add.at(counts, (truth.server["noisy"], federation.server["noisy"].labels), 1)
    assert transition_test(counts, expected) > 0.001
    assert all((given == -1).all() for given in federation.given)


def test_by_default_exactly_so_many_are_wrong_and_the_same_ones_each_time(table):
    keys = {"server.noisy": 500, "server.noisy_rate": 0.4, "server.noise": "symmetric"}
    (one, truth), (two, _), (other, _) = (server_of(table, seed=seed, **keys) for seed in (0, 0, 1))
    labels = one.server["noisy"].labels
    assert int((labels != truth.server["noisy"]).sum()) == 200
    assert np.array_equal(labels, two.server["noisy"].labels)
    assert one.hash == two.hash != other.hash


def test_it_is_not_the_clients_noise(table):
    keys = {"noise": "pair", "noise.rate": 0.3, "client_labels": True, "server.noisy": 500, "server.noisy_rate": 0.5}
    follows, truth = server_of(table, **keys)
    wrong = follows.server["noisy"].labels != truth.server["noisy"]
    assert set((follows.server["noisy"].labels - truth.server["noisy"])[wrong] % CLASSES) == {1}
    own, _ = server_of(table, **keys, **{"server.noise": "symmetric"})
    assert len(set((own.server["noisy"].labels - truth.server["noisy"]) % CLASSES)) == CLASSES
    for mine, theirs in zip(own.given, follows.given, strict=True):
        assert np.array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"server.noise_options": {"count": "exact"}}, "server.noise, which is not set"),
        ({"server.noise": "pair", "server.noise_options": {"map": "mnist"}}, r"server\.noise_options\.map"),
        ({"server.noise": "human"}, r"server\.noise='human'"),
    ],
)
def test_noise_that_cannot_be(table, keys, said):
    with pytest.raises(ConfigError, match=said):
        server_of(table, **{"server.noisy": 10, **keys})


def test_options_survive_the_settings_file(table):
    keys = {"data": table, "server.noisy": 5, "server.noise": "pair", "server.noise_options": {"step": 2}}
    config = resolve(keys)
    assert config.flat()["server.noise_options"] == {"step": 2}
    assert resolve(config.flat()) == config


def test_classes_in_turn():
    assert even_order(np.array([0, 0, 0, 1, 1, 2])).tolist() == [0, 3, 5, 1, 4, 2]
    assert even_order(np.empty(0, np.int64)).tolist() == []


def test_balanced_sets_hold_each_class_alike(table):
    """As far as the classes go: of the rare one there are sixty."""
    sizes = {"server.noisy": 500, "server.clean": 105, "server.noisy_rate": 0.0}
    _, truth = server_of(table, **sizes)
    assert np.bincount(truth.server["noisy"]).tolist() != [50] * CLASSES
    even, truth = server_of(table, **sizes, **{"server.balanced": True})
    rows = np.concatenate([*even.rows, even.server["noisy"].rows, even.server["clean"].rows])
    assert len(np.unique(rows)) == len(rows) == 5460
    clean, noisy = (np.bincount(truth.server[name]) for name in ("clean", "noisy"))
    assert sorted(clean.tolist()) == [10] * 5 + [11] * 5
    assert int(noisy[9]) == min(50, 60 - int(clean[9]))
    assert int(np.ptp(noisy[:9])) <= 1


def test_what_is_said_of_the_servers_labels(table, tmp_path):
    keys = {"server.noisy": 100, "server.clean": 20, "server.unlabelled": 5, "server.noise": "pair"}
    federation, truth = server_of(table, **keys, **{"server.balanced": True})
    described = describe(federation, truth)
    assert described["server"] == {"unlabelled": 5, "clean": 20, "noisy": 100}
    assert described["server_labels"]["clean"] == {"classes": [2] * CLASSES, "noise_realised": 0.0}
    assert described["server_labels"]["noisy"]["noise_realised"] == pytest.approx(0.2)
    assert sum(described["server_labels"]["noisy"]["classes"]) == 100
    assert "server holds: unlabelled 5, clean 20 (0.0% wrong), noisy 100 (20.0% wrong)" in as_text(described)
    assert "server holds: unlabelled 5, clean 20, noisy 100\n" in as_text(describe(federation, None))
    assert json.loads(json.dumps(described)) == described
    truth.save(tmp_path / "truth.npz")
    again = GroundTruth.load(tmp_path / "truth.npz")
    assert again.server.keys() == {"clean", "noisy"}
    assert np.array_equal(again.server["noisy"], truth.server["noisy"])
    assert replace(truth, server={}).server_noise("noisy", federation.server["noisy"].labels) is None


# Data without labels


@pytest.fixture
def gaps(tmp_path):
    """A file of 300 rows of three classes, of which every third has a label, as far as its arrays are not left out."""

    def written(*left_out, **more):
        rng = np.random.default_rng(0)
        true, test = np.arange(300) % 3, np.arange(30) % 3
        labels = np.where(np.arange(300) // 3 % 3 == 0, true, -1)
        arrays = {
            "x_train": rng.normal(true[:, None], 0.5, (300, 4)), "y_train": labels,
            "x_test": rng.normal(test[:, None], 0.5, (30, 4)), "y_test": test,
        } | more  # fmt: skip
        path = tmp_path / "gaps.npz"
        np.savez(path, **{name: value for name, value in arrays.items() if name not in left_out})
        return str(path)

    return written


def test_the_servers_sets_are_taken_from_labelled_rows(gaps):
    """And the clients have what is left, labelled or not."""
    path = gaps()
    keys = {"server.noisy": 60, "server.noisy_rate": 0.0, "validation": 20, "server.unlabelled": 30}
    for balanced in (False, True):
        (federation, truth), (again, _) = (server_of(path, **keys, **{"server.balanced": balanced}) for _ in range(2))
        assert federation.hash == again.hash
        held = federation.server["noisy"]
        assert (held.labels == held.rows % 3).all()
        assert len(held.labels) == 60
        assert not balanced or np.bincount(held.labels).tolist() == [20, 20, 20]
        assert (truth.validation == federation.validation % 3).all()
        assert truth.labels is None
        assert sum(len(rows) for rows in federation.rows) == 300 - 60 - 20 - 30
        assert all((given == -1).all() for given in federation.given)
        assert federation.class_names == ("0", "1", "2")


def test_without_any_training_label(gaps):
    federation, _ = server_of(gaps("y_train"), **{"server.unlabelled": 10})
    assert federation.n_classes == 3
    assert sum(len(rows) for rows in federation.rows) == 290


@pytest.mark.parametrize(
    ("left_out", "keys", "code", "said"),
    [
        ((), {"client_labels": True}, "FS303", "y_train row 3 is -1. Labels go from 0 upwards"),
        (("y_train",), {"client_labels": True}, "FS302", "lacks y_train"),
        (("y_train",), {"server.noisy": 1}, "FS308", "noisy 1: only 0 rows of gaps have a label"),
        ((), {"server.noisy": 80, "validation": 30}, "FS308", "validation 30: only 22 rows"),
        (("y_test",), {}, "FS302", "lacks y_test"),
        (("x_test", "y_test"), {}, "FS307", "no labelled samples to test on"),
        (("x_train",), {}, "FS302", "lacks x_train"),
        ((), {"noise": "symmetric"}, "FS307", "server.noise is"),
        ((), {"partition": "dirichlet"}, "FS305", "Set partition=iid"),
        ((), {"partition": "shards"}, "FS305", "some rows of gaps have no label"),
    ],
)
def test_what_data_without_labels_cannot_do(gaps, left_out, keys, code, said):
    with pytest.raises(DataError, match=said) as problem:
        server_of(gaps(*left_out), **keys)
    assert problem.value.code == code


def test_no_other_number_stands_for_none(gaps):
    with pytest.raises(DataError, match=r"y_train row 7 is -2. Labels go from 0 upwards, and -1 is none") as problem:
        server_of(gaps(y_train=np.where(np.arange(300) == 7, -2, 0)))
    assert problem.value.code == "FS303"


def test_a_run_on_a_few_labels(gaps, tmp_path):
    """The server learns from its labels, clients from samples that have none."""
    options = {"fixmatch.pretrain": 20, "fixmatch.threshold": 0.5, "fixmatch.weak": "none", "fixmatch.strong": "none"}
    keys = {"clients": 3, "rounds": 2, "epochs": 1, "model": "mlp", "client_labels": False, "runtime": "serial"}
    server = {"server.noisy": 60, "server.noisy_rate": 0.0, "fixmatch.view": "none", "augment": "none"}
    summary = run(method="fixmatch", data=gaps(), out=str(tmp_path / "run"), **keys, **options, **server)
    assert summary["test_accuracy"] > 0.6
    assert summary["guess_share"] is None
