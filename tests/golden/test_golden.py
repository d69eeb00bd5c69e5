"""A change that should not alter numbers does not: every method on the tiny federation, against stored values.

Where a change is meant to alter them, write them anew and look at the difference before committing it:

    python tests/golden/test_golden.py
"""

import json
from pathlib import Path

import pytest
import torch

from fedsieve.methods import METHODS
from fedsieve.testing import Contract

VALUES = Path(__file__).with_name("values.json")
TOLERANCE = 1e-4
"""Other processors and libraries round otherwise; what is really different differs by more."""
NUDGE = 1e-6
"""Of the initial weights, to see what becomes of a difference in their last bits before a value is stored."""
SHORTER = {
    "byol": {"rounds": 1},
    "fedu": {"rounds": 1},
    "fedcr": {"fedcr.pretrain": 1},
    "fedmatch": {"fedmatch.pretrain": 1},
    "fedanchor": {"fedanchor.pretrain": 1, "fedanchor.server.epochs": 1, "rounds": 1},
}
"""Methods in which the last bits grow beyond the tolerance within two rounds, or within the server's pre-training."""


def measured(method: str, nudge: float = 0.0) -> dict[str, float]:
    """How far two rounds move the trainable parameters, and the mean training loss on the way.

    Running statistics are left out: they move so far that nothing else would show. Where nothing is shared, the models
    are the clients' own.
    """
    with Contract.of(method, {"rounds": 2} | SHORTER.get(method, {})).trial() as trial:
        for weights in trial.plan.initial:
            weights *= 1 + nudge * torch.randn(weights.shape, generator=torch.Generator().manual_seed(0))
        start = trial.plan.initial[0].clone()
        state = trial.run()
        models = [state.models[0][0]]
        if not trial.plan.up_slices:
            models = [trial.states.load(k, version)["net/0"] for k, version in state.versions.items()]
        ways = [(model - start)[: trial.plan.layout.trainable].double().norm() for model in models]
        losses = [up.loss for up in trial.record.ups]
    return {"change": float(sum(ways) / len(ways)), "loss": sum(losses) / max(len(losses), 1)}


@pytest.mark.parametrize("method", METHODS)
def test_numbers_are_what_they_were(method):
    assert measured(method) == pytest.approx(json.loads(VALUES.read_text())[method], rel=TOLERANCE)


def test_nothing_else_is_stored():
    assert list(json.loads(VALUES.read_text())) == list(METHODS)


if __name__ == "__main__":
    torch.set_num_threads(1)
    before = json.loads(VALUES.read_text())
    found = {method: measured(method) for method in METHODS}
    same = {name for name in before if before[name] == pytest.approx(found.get(name), rel=TOLERANCE)}
    shaky = [name for name in METHODS if measured(name, NUDGE) != pytest.approx(found[name], rel=TOLERANCE)]
    if shaky:
        raise SystemExit(f"a nudge of {NUDGE} moves {', '.join(shaky)} beyond the tolerance: make them shorter")
    kept = {name: before[name] if name in same else found[name] for name in METHODS}
    VALUES.write_text(json.dumps(kept, indent=1) + "\n")
