"""Every method keeps the contract, alone and in a few compositions."""

from functools import lru_cache

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


@lru_cache(maxsize=1)
def contract(method):
    """One for all checks of a method, which share a trial."""
    return Contract.of(method, {})


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("method", [*METHODS, *COMPOSED])
def test_contract(method, check):
    check(contract(method))
