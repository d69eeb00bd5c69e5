"""What only `make test-faults` runs."""

import os

import pytest

long = pytest.mark.skipif("FEDSIEVE_KILLS" not in os.environ, reason="long; `make test-faults` runs it")


def longer(*values):
    """Values of a parameter that are left to the long tests."""
    return [pytest.param(value, marks=long) for value in values]
