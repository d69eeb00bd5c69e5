"""A change that should not alter numbers does not: every method on the tiny federation, against stored values.

Where a change is meant to alter them, write them anew and look at the difference before committing it:

    python tests/golden/test_golden.py
"""

import json
from pathlib import Path

import pytest

from fedsieve.methods import METHODS
from fedsieve.testing import Contract

VALUES = Path(__file__).with_name("values.json")
TOLERANCE = 1e-4
"""Other processors and libraries round otherwise; what is really different differs by more."""


def measured(method: str) -> dict[str, float]:
    """How far two rounds move the trainable parameters, and the mean training loss on the way.

    Running statistics are left out: they move so far that nothing else would show. Where nothing is shared, the models
    are the clients' own.
    """
    with Contract.of(method, {"rounds": 2}).trial() as trial:
        state = trial.run()
        models = [state.models[0][0]]
        if not trial.plan.up_slices:
            models = [trial.states.load(k, version)["net/0"] for k, version in state.versions.items()]
        ways = [(model - trial.plan.initial[0])[: trial.plan.layout.trainable].double().norm() for model in models]
        losses = [up.loss for up in trial.record.ups]
    return {"change": float(sum(ways) / len(ways)), "loss": sum(losses) / max(len(losses), 1)}


@pytest.mark.parametrize("method", METHODS)
def test_numbers_are_what_they_were(method):
    assert measured(method) == pytest.approx(json.loads(VALUES.read_text())[method], rel=TOLERANCE)


def test_nothing_else_is_stored():
    assert list(json.loads(VALUES.read_text())) == list(METHODS)


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    VALUES.write_text(json.dumps({method: measured(method) for method in METHODS}, indent=1) + "\n")
