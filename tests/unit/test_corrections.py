"""What a correction before training wrote is what a method trains on; of every method the contract asks the same."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedsieve.core.part import Method, Stage
from fedsieve.parts.losses import AdjustedLogits
from fedsieve.testing import Contract, tiny_federation
from fedsieve.testing.checks import a_correction_is_followed
from fedsieve.testing.parts import Corrected

MLP = {"model": "mlp", "model.hidden": [8]}
PLAIN = MLP | {"augment": "none", "batch": 100, "rounds": 1}


@pytest.mark.parametrize(
    "method", ["logit-adjust", "fednoro", "fedelc", "robust-fl", "fedrn", "focus", "ifca", "joint"]
)
def test_methods_follow_a_correction(method):
    a_correction_is_followed(Contract.of(method, MLP))


def test_the_adjustment_by_hand_after_a_correction():
    """Given labels are 0 and 1 alone, corrected ones 1 and 2: log π is theirs, or the first loss would be beyond 18."""
    federation = tiny_federation()
    given = tuple(np.arange(24) % 2 for _ in federation.given)
    stages = (Stage("corrected", 0, (Corrected(shift=1),)), Stage(parts=(AdjustedLogits(),)))
    with Contract.of(Method("own", stages), PLAIN).trial(replace(federation, given=given)) as trial:
        trial.run()
        pixels = torch.from_numpy(federation.images[federation.rows[0]]).float().permute(0, 3, 1, 2) / 255
        logits = trial.plan.build(0)((pixels - federation.mean[0]) / federation.std[0])
        prior = torch.tensor([1e-8, 12.0, 12.0, 1e-8]) / 24
        expected = F.cross_entropy(logits + prior.log(), torch.arange(24) % 2 + 1)
        assert trial.record.ups[0].loss == pytest.approx(expected.item(), rel=1e-4)
        assert trial.record.ups[0].loss < 2
