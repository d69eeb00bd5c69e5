"""Options of something that is not chosen are refused: they would be recorded and change nothing."""

import pytest

from fedsieve.base.errors import ConfigError
from fedsieve.runs.comparison import cells
from fedsieve.settings.config import resolve
from fedsieve.settings.planning import chosen_keys, config_of

IDLE = [
    ({"noise.rate": 0.4}, "noise.rate has no effect: noise is none. Set noise too"),
    ({"noise": "none", "noise.rates": "ramp"}, "noise.rates has no effect: noise is none"),
    ({"schedule.decay": 0.9}, "schedule.decay has no effect: schedule is none. Set schedule=exponential too"),
    ({"schedule": "cosine", "schedule.decay": 0.9}, "schedule is cosine"),
    ({"flower.wait": 3}, "flower.wait has no effect: runtime is pool. Set runtime=flower too"),
    ({"combine.trim": 0.3}, "combine.trim has no effect: combine is not set"),
    ({"server.noisy_rate": 0.4}, "server.noisy_rate has no effect: the server holds no noisy samples"),
    ({"server.clean_noise": 0.4}, "server.clean_noise has no effect: the server holds no clean samples"),
    ({"server.noise": "pair"}, "none of the server's labels are made wrong"),
    ({"server.noise_options": {"step": 2}}, "none of the server's labels are made wrong"),
    ({"admit.factor": 0, "admit.excess": "clip"}, "admit.excess has no effect: admit.factor is 0"),
    ({"server.noise": "pair", "server.clean": 5}, "none of the server's labels are made wrong"),
    ({"server.unlabelled_from": "generated"}, "Set server.unlabelled too"),
    ({"server.unlabelled_from": "clean", "server.unlabelled": 5}, "Set server.clean too"),
    ({"server.balanced": True}, "server.balanced has no effect: the server holds no samples"),
]
CHOSEN = [
    {"noise": "pair", "noise.rate": 0.4},
    {"schedule": "exponential", "schedule.decay": 0.9},
    {"runtime": "flower", "flower.wait": 3},
    {"combine": "trimmed-mean", "combine.trim": 0.3},
    {"server.noisy": 5, "server.noisy_rate": 0.4, "server.noise": "pair"},
    {"server.clean": 5, "server.clean_noise": 0.4, "server.noise": "pair"},
    {"server.unlabelled_from": "generated", "server.unlabelled": 5},
    {"server.unlabelled_from": "clean", "server.clean": 5},
    {"server.balanced": True, "server.public": 5},
    {"server.noisy_rate": 0.2, "server.balanced": False},
    {"admit.factor": 0, "admit.excess": "refuse"},
    {"admit.excess": "clip"},
]


@pytest.mark.parametrize(("settings", "message"), IDLE, ids=str)
def test_an_option_without_effect_is_refused(settings, message):
    with pytest.raises(ConfigError, match="FS001") as problem:
        resolve(settings)
    assert message in problem.value.message
    assert problem.value.message.endswith("or leave it out")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"partition.alpha": 0.3}, r"partition\.alpha is an option of partition=dirichlet .*, but partition is iid\."),
        (
            {"noise": "pair", "noise.high": 0.3},
            r"noise\.high is an option of noise\.rates=ramp.*, but noise\.rates is fixed",
        ),
        (
            {"noise": "symmetric", "noise.step": 2},
            r"noise\.step is an option of .*noise=pair.*, but noise is symmetric",
        ),
    ],
    ids=str,
)
def test_an_option_of_something_else_says_whose_it_is(settings, message):
    with pytest.raises(ConfigError, match=message) as problem:
        resolve(settings)
    assert problem.value.code == "FS001"


@pytest.mark.parametrize("settings", CHOSEN, ids=str)
def test_where_it_is_chosen_it_is_taken(settings):
    flat = resolve(settings).flat()
    assert all(flat[key] == value for key, value in settings.items())
    assert resolve(flat).flat() == flat


def test_a_comparison_leaves_it_out_where_it_has_no_effect():
    found = [cell.config.flat() for cell in cells({"noise": "none,pair", "noise.rate": "0.1,0.2"})]
    assert [one.get("noise.rate") for one in found] == [None, 0.1, 0.2]
    found = [cell.config.flat() for cell in cells({"schedule": "none,exponential", "schedule.decay": 0.9})]
    assert [one.get("schedule.decay") for one in found] == [None, 0.9]
    found = [cell.config.flat() for cell in cells({"server.noisy": "0,9", "server.noisy_rate": 0.4})]
    assert [one["server.noisy_rate"] for one in found] == [0.2, 0.4]
    found = [cell.config.flat() for cell in cells({"combine": "median,trimmed-mean", "combine.trim": 0.3})]
    assert [one.get("combine.trim") for one in found] == [None, 0.3]
    with pytest.raises(ConfigError, match=r"noise\.rate has no effect"):
        cells({"method": "fedavg,gce", "noise.rate": 0.4})


def test_options_go_with_what_they_belong_to_when_a_key_changes():
    config = resolve({"runtime": "flower", "flower.wait": 3})
    assert "flower.wait" not in config.with_keys(runtime="pool").flat()
    assert config.with_keys(device="cpu").flat()["flower.wait"] == 3


def test_what_somebody_chose_is_told_from_defaults():
    settings = {
        "method": "fedprox",
        "fedprox.mu": 0.3,
        "noise": "pair",
        "noise.rates": "ramp",
        "noise.low": 0,
        "lr": 0.2,
    }
    assert chosen_keys(config_of(settings)) == ["lr", "method", "noise", "noise.rates", "fedprox.mu"]
    assert chosen_keys(config_of({})) == []
    assert chosen_keys(config_of({"model": "mlp", "model.hidden": [7], "server.clean": 5, "schedule": "cosine"})) == [
        "schedule", "model", "server.clean", "model.hidden",
    ]  # fmt: skip
