"""Whatever is typed as settings either works or is refused by an error that says so."""

from contextlib import suppress

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fedsieve.base.errors import FedSieveError
from fedsieve.base.options import options_of
from fedsieve.data.noise import NOISES
from fedsieve.data.partition import PARTITIONS
from fedsieve.data.rates import RATES
from fedsieve.methods import METHODS, build_method, canonical, method_options
from fedsieve.models import MODELS
from fedsieve.runs.comparison import cells
from fedsieve.settings.config import Settings, read_settings, resolve
from fedsieve.settings.planning import config_of

QUICK = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])

CHOICES = {
    "method": [*METHODS, "scaffold+gce", "moon+mae+fedprox", "gce+mae"],
    "partition": list(PARTITIONS),
    "noise": list(NOISES),
    "noise.rates": list(RATES),
    "model": ["cnn-lite", "mlp", "fedds-mnist"],
    "schedule": ["none", "cosine", "exponential", "steps"],
}
OPTIONS = sorted(
    {f"partition.{name}" for kind in PARTITIONS.values() for name in options_of(kind)}
    | {f"noise.{name}" for kind in (*NOISES.values(), *RATES.values()) for name in options_of(kind)}
    | {f"{label}.{name}" for m in METHODS for label, found in method_options(m).items() for name in found}
    | {"server.clean", "server.noisy", "schedule.decay", "model.hidden", "data.label"}
)
KNOWN = st.sampled_from([*options_of(Settings), *OPTIONS])
KEYS = KNOWN | st.text("abcdefgrs._-+ ", max_size=12)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-5, 50)
    | st.integers()
    | st.floats(allow_nan=True)
    | st.text(max_size=8)
    | st.sampled_from([name for names in CHOICES.values() for name in names])
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=2), max_leaves=4
)
NAMED = st.fixed_dictionaries({}, optional={key: st.sampled_from(names) for key, names in CHOICES.items()})


def outcome(work):
    """The result, or None where it was refused; any other exception is a fault of ours."""
    with suppress(FedSieveError):
        return work()


def checked(raw):
    config = config_of(raw)
    build_method(config.top.method, config.options)
    return config


@QUICK
@given(named=NAMED, rest=st.dictionaries(KEYS, VALUES, max_size=4))
def test_settings_resolve_or_are_refused(named, rest):
    assume("data" not in rest)  # names a file: what is in it is another test's matter
    config = outcome(lambda: checked(named | rest))
    if config is not None and not any(isinstance(value, dict) for value in config.flat().values()):
        assert repr(config_of(config.flat()).flat()) == repr(config.flat()), "written and read back it is the same"


@QUICK
@given(named=NAMED, name=st.sampled_from(OPTIONS), value=SCALARS)
def test_one_option_of_a_known_choice(named, name, value):
    outcome(lambda: checked(named | {name: value}))


SAFE_TEXT = st.text(st.characters(codec="ascii", exclude_characters="!&*0123456789"), max_size=15)
"""Without tags, anchors and what looks like dates or numbers, over which YAML stumbles; see the unit tests."""


@QUICK
@given(pairs=st.lists(st.tuples(KEYS, SAFE_TEXT | st.sampled_from(["1", "0.5", "true", "[1, 2]"])), max_size=4))
def test_arguments_resolve_or_are_refused(pairs):
    assume(not any(key == "data" for key, _ in pairs))
    outcome(lambda: resolve(read_settings(None, [f"{key}={text}" for key, text in pairs])))


@QUICK
@given(content=st.binary(max_size=40) | SAFE_TEXT.map(str.encode))
def test_files_resolve_or_are_refused(tmp_path_factory, content):
    assume(not any(mark in content for mark in b"!&*-:") or content.isalpha())
    path = tmp_path_factory.mktemp("fuzz") / "x.yaml"
    path.write_bytes(content)
    outcome(lambda: resolve(read_settings(path, [])))


@QUICK
@given(named=NAMED, rest=st.dictionaries(KNOWN, SCALARS | st.lists(SCALARS, min_size=1, max_size=3), max_size=3))
def test_comparisons_are_planned_or_refused(named, rest):
    assume("data" not in rest and not any(isinstance(value, str) and "," in value for value in rest.values()))
    outcome(lambda: [cell.key for cell in cells(named | rest)])


def test_every_name_resolves():
    for key, names in (CHOICES | {"model": list(MODELS)}).items():
        for name in names:
            expected = canonical(name) if key == "method" else name
            assert resolve({"noise": "symmetric", key: name}).flat()[key] == expected


@pytest.mark.parametrize("key", ["rounds", "lr", "noise.rate"])
def test_yaml_forms_of_one_number_are_one_setting(key):
    flats = [
        resolve({"noise": "symmetric"} | yaml.safe_load(f"{key}: {form}")).flat()[key]
        for form in ("1", "'1'", "1.0", "!!float 1")
    ]
    assert set(flats) == {1}
