"""Settings: YAML and key=value, nested and flat, checked with the key in the message."""

import os
from pathlib import Path

import pytest
import yaml

from fedsieve.base.errors import ConfigError
from fedsieve.base.options import options_of
from fedsieve.settings.config import Settings, parse, read_settings, resolve
from fedsieve.settings.planning import config_of
from fedsieve.testing import Contract, tiny_federation

CONVENTIONS = {
    "data": "embedded",
    "clients": 20,
    "fraction": 1.0,
    "rounds": 20,
    "epochs": 5,
    "batch": 50,
    "lr": 0.05,
    "momentum": 0.5,
    "weight_decay": 0,
    "optimizer": "sgd",
    "schedule": "none",
    "model": "cnn-lite",
    "norm": "average",
    "method": "fedavg",
    "partition": "iid",
    "noise": "none",
    "augment": "flip",
    "seed": 0,
    "runtime": "pool",
    "device": "auto",
    "precision": "fp32",
    "dropout": 0,
    "eval_every": 1,
    "checkpoint_every": 1,
}


def written(tmp_path, text):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    return path


def test_defaults_are_those_users_rely_on():
    flat = resolve({}).flat()
    assert {key: flat[key] for key in CONVENTIONS} == CONVENTIONS
    assert flat["workers"] == (os.cpu_count() or 1)
    assert not {"out", "overwrite"} & flat.keys()
    assert str(resolve({}).folder()) == "runs/embedded-fedavg-s0"


def test_every_key_is_documented():
    assert all(option.doc for option in options_of(Settings).values())


def test_arguments_go_over_the_file(tmp_path):
    file = written(tmp_path, "rounds: 7\nlr: 0.1\nmethod: fedprox\nfedprox:\n  mu: 0.3\nserver.clean: 5\n")
    settings = read_settings(file, ["rounds=9", "fedprox.mu=0.4", "noise=symmetric", "noise.rate=0.2", "rounds=8"])
    flat = config_of(settings).flat()
    assert (flat["rounds"], flat["lr"], flat["fedprox.mu"], flat["server.clean"]) == (8, 0.1, 0.4, 5)
    assert (flat["noise"], flat["noise.rate"]) == ("symmetric", 0.2)


SEVERAL = "method: [fedprox, scaffold+symce]\nfedprox.mu: 0.3\nsymce.alpha: 0.2\nnoise: symmetric\nnoise.rate: 0.1\n"


@pytest.mark.parametrize(
    ("pairs", "left"),
    [
        ([], {"fedprox.mu", "symce.alpha", "noise.rate"}),
        (["method=fedavg"], {"noise.rate"}),
        (["method=fedprox"], {"fedprox.mu", "noise.rate"}),
        (["method=symce,fedavg"], {"symce.alpha", "noise.rate"}),
        (["method=fedavg", "symce.alpha=0.4"], {"symce.alpha", "noise.rate"}),
        (["noise=none"], {"fedprox.mu", "symce.alpha"}),
        (["noise=asymmetric"], {"fedprox.mu", "symce.alpha", "noise.rate"}),
    ],
)
def test_options_of_what_is_replaced_stay_in_the_file(tmp_path, pairs, left):
    settings = read_settings(written(tmp_path, SEVERAL), pairs)
    assert {key for key in settings if "." in key} == left


def test_options_of_no_method_of_the_file_are_refused(tmp_path):
    settings = read_settings(written(tmp_path, SEVERAL + "fedproxx.mu: 1\n"), ["method=fedprox"])
    with pytest.raises(ConfigError, match="FS001"):
        resolve(settings)


def test_nested_and_dotted_keys_are_the_same():
    nested = {"method": "fedprox", "fedprox": {"mu": 0.2}, "server": {"clean": 3}}
    dotted = {"method": "fedprox", "fedprox.mu": 0.2, "server.clean": 3}
    assert resolve(nested) == resolve(dotted)


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5), ("0.5", 0.5), ("true", True), ("a,b", "a,b"), ("", ""), ("null", None), ("~", "~"), ("[1, 2]", [1, 2])],
)
def test_values_are_read_as_yaml(text, value):
    assert parse(text) == value


def test_what_is_no_yaml_stays_text():
    assert parse("[") == "["
    assert parse("a: b: c") == "a: b: c"


def laid_out(settings):
    """Everything that is checked before a run: keys, values, method and model."""
    return Contract(config_of(settings), None).plan(tiny_federation()).layout


@pytest.mark.parametrize(
    ("settings", "code", "message"),
    [
        ({"roundz": 3}, "FS001", "unknown key 'roundz'. Did you mean 'rounds'?"),
        ({"fedprox.mu": 3}, "FS001", "fedprox.mu is an option of the method fedprox, which this run does not have"),
        ({"fedproxx.mu": 3}, "FS001", "unknown key 'fedproxx.mu': this run has no 'fedproxx'"),
        ({"noize.rate": 3}, "FS001", "Did you mean 'noise'?"),
        ({"noise": "symmetric", "noise.rte": 3}, "FS001", "unknown key 'noise.rte'. Did you mean 'rate'?"),
        ({"partition": "dirichlet", "partition.alfa": 3}, "FS001", "'partition.alfa'. Did you mean 'alpha'?"),
        ({"server.klean": 3}, "FS001", "unknown key 'server.klean'. Did you mean 'clean'?"),
        ({"schedule": "exponential", "schedule.dekay": 3}, "FS001", "'schedule.dekay'. Did you mean 'decay'?"),
        ({"method": "fedprox", "fedprox.nu": 3}, "FS001", "unknown key 'fedprox.nu'. Did you mean 'mu'?"),
        ({"model": "mlp", "model.hiden": [3]}, "FS001", "unknown key 'model.hiden'. Did you mean 'hidden'?"),
        ({"method": "fedpox"}, "FS004", "unknown method 'fedpox'. Did you mean 'fedprox'?"),
        ({"partition": "dirchlet"}, "FS004", "partition=dirchlet: unknown. Did you mean 'dirichlet'?"),
        ({"noise": "simmetric"}, "FS004", "noise=simmetric: unknown. Did you mean 'symmetric'?"),
        ({"noise": "symmetric", "noise.rates": "rampp"}, "FS004", "noise.rates=rampp: unknown. Did you mean 'ramp'?"),
        ({"model": "resnet19"}, "FS004", "unknown model 'resnet19'"),
        (
            {"method": "fedavg,gce"},
            "FS004",
            "unknown method 'fedavg,gce'. Give one value; several are for `fedsieve com",
        ),
        (
            {"model": "mlp,cnn4"},
            "FS004",
            "unknown model 'mlp,cnn4'. Give one value; several are for `fedsieve compare`",
        ),
        (
            {"noise": "pair,none"},
            "FS004",
            "noise=pair,none: unknown. Give one value; several are for `fedsieve compare`",
        ),
        (
            {"seed": "0,1"},
            "FS002",
            "unable to parse string as an integer. Give one value; several are for `fedsieve co",
        ),
        ({"lr": [0.1, 0.2]}, "FS002", "input should be a valid number. Give one value; several are"),
        ({"rounds": -1}, "FS002", "rounds=-1: input should be greater than or equal to 0"),
        ({"rounds": 1.5}, "FS002", "rounds=1.5: input should be a valid integer"),
        ({"clients": 0}, "FS002", "clients=0: input should be greater than or equal to 1"),
        ({"lr": 0}, "FS002", "lr=0: input should be greater than 0"),
        ({"fraction": 1.2}, "FS002", "fraction=1.2: input should be less than or equal to 1"),
        ({"momentum": 1}, "FS002", "momentum=1: input should be less than 1"),
        ({"optimizer": "sdg"}, "FS002", "optimizer='sdg': input should be 'sgd', 'adam' or 'adamw'"),
        ({"dropout": "half"}, "FS002", "dropout='half': input should be a valid number"),
        ({"noise": "symmetric", "noise.rate": 2}, "FS002", "noise.rate=2"),
        ({"method": "gce", "gce.q": 2}, "FS002", "gce.q=2: input should be less than or equal to 1"),
        ({"model": "mlp", "model.hidden": [0]}, "FS002", "model.hidden=[0]"),
        ({"lr": float("nan")}, "FS002", "lr=nan"),
        ({"method": "no.such:thing"}, "FS010", "method=no.such:thing: names code that would run here"),
        ({"model": "no.such:thing"}, "FS010", "model=no.such:thing: names code that would run here"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_keys_and_values_are_named(settings, code, message):
    with pytest.raises(ConfigError) as problem:
        laid_out(settings)
    assert problem.value.code == code
    assert message in problem.value.message
    assert str(problem.value).endswith(f"[{code}]")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b\n", "holds a list"),
        ("just text", "holds a str"),
        ("a: [", "cannot be read as YAML"),
        ("\tx: 1", "cannot be read as YAML"),
    ],
)
def test_files_that_are_no_settings(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message) as problem:
        read_settings(written(tmp_path, text), [])
    assert problem.value.code == "FS003"
    assert "\n" not in problem.value.message


def test_other_faults_of_files_and_arguments(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        read_settings(tmp_path / "none.yaml", [])
    binary = tmp_path / "x.yaml"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ConfigError, match="cannot be read as YAML"):
        read_settings(binary, [])
    with pytest.raises(ConfigError, match="cannot be read as YAML"):
        read_settings(tmp_path, [])
    with pytest.raises(ConfigError, match=r"out holds a zero byte.*\[FS002\]"):
        resolve({"out": "a\0b"}).folder()
    itself = {"rounds": 3}
    itself["noise"] = itself
    with pytest.raises(ConfigError, match=r"a setting contains itself\. Write it out .*\[FS002\]"):
        resolve(itself)
    for pair in ("rounds", "=5"):
        with pytest.raises(ConfigError, match=r"neither a \.yaml file nor key=value\. Write for instance rounds=10"):
            read_settings(None, [pair])
    assert read_settings(written(tmp_path, ""), []) == {}


RICH = {
    "method": "gce+scaffold",
    "scaffold.weighted": True,
    "partition": "dirichlet",
    "partition.alpha": 0.3,
    "noise": "pair",
    "noise.rates": "ramp",
    "noise.low": 0.1,
    "noise.high": 0.6,
    "server.noisy": 20,
    "schedule": "exponential",
    "schedule.decay": 0.9,
    "model": "mlp",
    "model.hidden": [4, 5],
    "seed": 3,
}


def test_what_is_written_is_read_back_the_same():
    for settings in ({}, RICH, {"noise": "symmetric"}, {"partition": "shards"}):
        config = config_of(settings)
        assert config_of(config.flat()).flat() == config.flat()
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in config.flat().items()}
        again = config_of(yaml.safe_load(yaml.safe_dump(plain)))
        assert again.flat().keys() == config.flat().keys()
        assert choices(again) == choices(config)


def choices(config):
    """What two configurations that are the same agree in."""
    return config.top, config.partition(), config.noise(), config.server(), config.schedule()


def test_defaults_of_every_choice_are_written_out():
    flat = config_of(RICH).flat()
    assert flat["method"] == "scaffold+gce"
    assert flat["gce.q"] == 0.7
    assert flat["server.noisy_rate"] == 0.2
    assert flat["noise.rates"] == "ramp"
    assert flat["schedule.decay"] == 0.9
    assert list(flat["model.hidden"]) == [4, 5]
    assert config_of({"method": "moon"}).flat()["moon.tau"] == 0.5


def test_a_tilde_is_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve({"out": "~/x"}).folder() == tmp_path / "x"
    assert resolve({"out": "x~"}).folder() == Path("x~")


def test_several_values_lead_to_a_comparison():
    with pytest.raises(ConfigError, match="several are for `fedsieve compare`"):
        resolve({"seed": "0,1"})


def test_the_folder_is_named_after_data_method_and_seed():
    assert resolve({"data": "some/where/photos.npz", "seed": 4}).folder() == Path("runs/photos-fedavg-s4")
    assert resolve({"method": "gce+fedprox"}).folder() == Path("runs/embedded-fedprox+gce-s0")
    assert resolve({"out": "here"}).folder() == Path("here")


def test_changing_keeps_everything_else():
    config = config_of(RICH | {"out": "here"})
    changed = config.with_keys(workers=3)
    assert changed.top.workers == 3
    assert changed.top.out == "here"
    assert changed.flat() | {"workers": 0} == config.flat() | {"workers": 0}


MAP = {"noise": "asymmetric", "noise.rate": 0.3, "noise.map": {1: 2, 2: 1}}


def test_a_map_of_classes_is_a_value_of_its_own():
    assert resolve(MAP).noise()[0].map == {1: 2, 2: 1}  # type: ignore[attr-defined]  # of this noise


@pytest.mark.parametrize("key", ["lr", "weight_decay", "server.clean", "validation", "clip"])
def test_infinity_is_refused(key):
    with pytest.raises(ConfigError, match=key):
        resolve({key: float("inf")})


@pytest.mark.parametrize("text", ["2024-13-45", "0x_", "0b_", "!!int x", "!!bool x", "!!timestamp x"])
def test_text_that_yaml_stumbles_over_stays_text(text):
    assert parse(text) == text
