"""Named choices and their options."""

import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
from pydantic import Field

from fedsieve.base.errors import ConfigError, nearest
from fedsieve.base.options import REQUIRED, Choice, build, field_docs, import_object, options_of
from fedsieve.core.part import Method
from fedsieve.methods import METHODS, build_method, canonical, label, method_options
from fedsieve.parts.terms import Prox


@dataclass(frozen=True, kw_only=True)
class Tuned(Choice):
    size: Annotated[int, Field(ge=1)] = 3
    """How large."""
    kind: Literal["a", "b"] = "a"
    parts: tuple[int, ...] = (1, 2)


@dataclass(frozen=True, kw_only=True)
class Finer(Tuned):
    depth: float = 0.5
    """How deep,
    in two lines."""


def made(tuned: Tuned, name: str, flag: bool = False):
    """A function whose parameter contributes its fields."""
    return tuned, name, flag


def test_options_of_a_class_and_of_a_function():
    assert list(options_of(Finer)) == ["size", "kind", "parts", "depth"]
    found = options_of(made)
    assert list(found) == ["size", "kind", "parts", "name", "flag"]
    assert found["size"].owner == "tuned"
    assert found["name"].default is REQUIRED
    assert found["flag"].default is False


def test_the_sentence_under_a_field_is_its_documentation():
    assert field_docs(Finer) == {"size": "How large.", "depth": "How deep,\nin two lines."}
    assert options_of(Finer)["size"].doc == "How large."


def test_values_are_checked_when_made():
    assert Tuned(size="7", parts=[3]).size == 7
    assert Tuned(parts=[3]).parts == (3,)
    for bad in ({"size": 0}, {"size": "many"}, {"kind": "c"}, {"parts": 3}):
        with pytest.raises(ConfigError, match=rf"Tuned\.{next(iter(bad))}=.*Give a value of that kind") as problem:
            Tuned(**bad)
        assert problem.value.code == "FS002"


def test_building_sorts_options_to_their_owners():
    tuned, name, flag = build(made, {"size": 5, "name": "x", "flag": "yes"}, "own")
    assert (tuned, name, flag) == (Tuned(size=5), "x", True)
    assert build(Tuned, {"kind": "b"}, "own") == Tuned(kind="b")


def test_unknown_options_are_named_with_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown key 'own.sise'. Did you mean 'size'") as problem:
        build(made, {"sise": 5}, "own")
    assert problem.value.code == "FS001"
    with pytest.raises(ConfigError, match="'local' has no options"):
        build_method("local", {"local": {"mu": 1}})


@pytest.mark.parametrize(
    "reference",
    [
        "no.such.module:x",
        "fedsieve.base.errors:Nothing",
        "fedsieve.base.errors",
        ":x",
        "..:x",
    ],
)
def test_what_cannot_be_imported_is_said(reference):
    with pytest.raises(ConfigError, match="cannot be imported") as problem:
        import_object(reference, "method")
    assert problem.value.code == "FS006"


def test_the_nearest_name_or_all_of_them():
    assert nearest("fedpox", METHODS) == "Did you mean 'fedprox'?"
    assert nearest("qqqq", ["b", "a"]) == "Known: a, b."


def test_method_names_have_one_order():
    assert canonical("gce+scaffold") == canonical(" scaffold + gce ") == "scaffold+gce"
    assert canonical("gce+gce") == "gce"
    assert canonical("my.mod:f+fedprox") == "fedprox+my.mod:f"
    for bad in ("fedavgg", "", "gce+", "gce+nope"):
        with pytest.raises(ConfigError, match="unknown method") as problem:
            canonical(bad)
        assert problem.value.code == "FS004"


def test_options_of_methods_are_those_of_their_parts():
    assert list(method_options("fedprox+gce")["fedprox"]) == ["mu"]
    assert label("my.mod:mine") == "mine"
    method = build_method("gce+fedprox", {"fedprox": {"mu": 2}, "gce": {"q": 0.5}})
    assert method.stages[0].parts[0] == Prox(mu=2.0)
    assert method.stages[0].parts[1].q == 0.5  # type: ignore[attr-defined]  # of a loss


def a_lie() -> Method:
    return 1  # type: ignore[return-value]  # on purpose


def a_riddle() -> "Mehtod":  # type: ignore[name-defined]  # noqa: F821  # on purpose
    return Method("own")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{__name__}:a_riddle", "not a function that is annotated to return"),
        ("fedsieve.base.rng:stream", "not a function that is annotated to return"),
        ("os:system", "not a function that is annotated to return"),
        (f"{__name__}:a_lie", "It must return a fedsieve Method"),
    ],
)
def test_what_is_no_method_is_refused(name, message):
    with pytest.raises(ConfigError, match=message) as problem:
        build_method(name, {}, allow_code=True)
    assert problem.value.code == "FS006"


def test_every_method_has_a_summary_and_documented_options():
    for name, entry in METHODS.items():
        assert entry.summary
        for option in method_options(name)[name].values():
            assert option.doc.endswith((".", ")")), f"{name}.{option.name}"
            assert option.default is not REQUIRED


def test_listing_names_does_not_load_pytorch():
    script = "import sys, fedsieve.settings.config, fedsieve.methods, fedsieve.models; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_two_parts_with_one_option_name_are_refused():
    @dataclass(frozen=True, kw_only=True)
    class One(Choice):
        rate: float = 0.1

    @dataclass(frozen=True, kw_only=True)
    class Other(Choice):
        rate: float = 0.2

    def both(one: One, other: Other) -> None: ...

    both.__annotations__ = {"one": One, "other": Other}
    with pytest.raises(ConfigError, match="two parts have an option 'rate'"):
        options_of(both)
