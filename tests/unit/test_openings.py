"""What the core offers beyond training and averaging is used: each of it by some method, as it comes."""

from collections.abc import Iterator
from functools import lru_cache

import pytest

from fedsieve.core import Grouped, Method, Nobody, Part, Stage, WithServer, defines
from fedsieve.core.net import Net
from fedsieve.core.server import Server
from fedsieve.methods import METHODS, build_method
from fedsieve.parts.server_fit import ServerFit
from fedsieve.testing import Contract


@lru_cache
def methods() -> dict[str, Method]:
    return {name: build_method(name, {}) for name in METHODS}


def stages() -> Iterator[tuple[str, Stage]]:
    return ((name, stage) for name, method in methods().items() for stage in method.stages)


def parts() -> Iterator[tuple[str, Part]]:
    return ((name, part) for name, stage in stages() for part in stage.parts)


def users(hook: str) -> set[str]:
    return {name for name, part in parts() if defines(part, hook)}


def samplers(kind: type) -> set[str]:
    """The methods one of whose stages draws clients by it, also where another sampler holds it."""

    def held(sampler: object) -> Iterator[object]:
        while sampler is not None:
            yield sampler
            sampler = getattr(sampler, "sampler", None)

    return {name for name, stage in stages() if any(isinstance(one, kind) for one in held(stage.sampler))}


def test_the_server_moves_from_the_old_model_to_the_new_one() -> None:
    assert {"semifl", "fedmatch"} <= users("step")


def test_the_server_prepares_a_round_by_itself() -> None:
    own = {name for name, part in parts() if defines(part, "round") and not isinstance(part, ServerFit)}
    assert "fedanchor" in own


def test_the_server_trains_sections_of_its_own() -> None:
    fitting = {name for name, part in parts() if isinstance(part, ServerFit)}
    assert {"fixmatch", "fedcr", "server-sl"} <= fitting
    assert len({part.train for _, part in parts() if isinstance(part, ServerFit)}) > 1


def test_heads_are_asked_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, set[str]] = {"client": set(), "server": set()}
    at_client, at_server = Net.head, Server.predict

    def head(self, name, *rest, **options):
        asked["client"].add(name)
        return at_client(self, name, *rest, **options)

    def predict(self, models, samples, *names):
        asked["server"] |= {*names}
        return at_server(self, models, samples, *names)

    monkeypatch.setattr(Net, "head", head)
    monkeypatch.setattr(Server, "predict", predict)
    (own,) = (head.name for head in methods()["fedanchor"].heads)
    assert Contract.of("fedanchor", {}).tried.trial.record.ups
    assert own in asked["client"]
    assert own in asked["server"]


def test_the_server_takes_part_and_the_chosen_are_dealt_into_groups() -> None:
    assert "ssfl" in samplers(WithServer) & samplers(Grouped)


def test_some_parts_need_more_than_one_row() -> None:
    assert {"simclr", "byol"} <= {name for name, part in parts() if part.smallest_batch > 1}


def test_encoders_are_tested_by_a_probe() -> None:
    assert {name for name, method in methods().items() if method.test == "probe"} >= {
        "simclr",
        "byol",
        "fedu",
        "fedema",
    }


def test_pretraining_takes_none_of_the_rounds() -> None:
    alone = {name for name, stage in stages() if stage.extra and isinstance(stage.sampler, Nobody)}
    assert {"fixmatch", "uda"} <= alone
