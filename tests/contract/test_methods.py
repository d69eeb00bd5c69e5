"""Every method keeps the contract, alone and in a few compositions."""

import pytest

from fedsieve.methods import METHODS
from fedsieve.testing import CHECKS, Contract

COMPOSED = (
    "scaffold+fedds",
    "moon+fedds",
    "fedrn+fedds",
    "moon+symce",
    "scaffold+gce",
    "fedprox+logit-adjust",
    "fedprox+scaffold+moon+gce",
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("method", [*METHODS, *COMPOSED])
def test_contract(method, check):
    check(Contract.of(method, {}))
