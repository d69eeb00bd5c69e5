"""What a client may send under a name: types, ranges, and texts that are cut."""

import math

import pytest
import torch

from fedsieve.core.sent import (
    LARGEST,
    Sent,
    at_least_zero,
    clean_text,
    flags,
    in_full,
    names,
    orthonormal,
    probabilities,
    proportion,
    short,
)
from fedsieve.methods.feddiv_filter import SharedFilter
from fedsieve.parts.noisy_clients import ClassLossDetector

HALF = torch.tensor([0.5, 0.5])
BASIS = torch.linalg.qr(torch.randn(6, 3, generator=torch.Generator().manual_seed(0)))[0]
MIXTURE = in_full(SharedFilter.up["mixture"])
LOSSES = in_full(ClassLossDetector.topics["class losses"].answer["losses"])
TWO = torch.tensor([[0.1, 0.01, 0.7], [0.8, 0.02, 0.3]])


def fault(says, value):
    return says.type_fault(value) or says.range_fault(value)


GOOD = {
    "any number": (Sent(), -3.5),
    "as large as may be": (Sent(), LARGEST),
    "a number as a tensor": (proportion(), torch.tensor(0.5)),
    "a share": (proportion(), 1.0),
    "shares": (proportion(2), HALF),
    "none of them": (proportion("K"), torch.zeros(0)),
    "flags": (flags("C"), torch.tensor([0.0, 1.0])),
    "a loss": (at_least_zero(), -0.0),
    "probabilities": (probabilities("C"), HALF),
    "many probabilities": (probabilities("C"), torch.full((7000,), 1 / 7000)),
    "columns": (orthonormal("d", "<=q"), BASIS),
    "columns and padding": (orthonormal("d", "<=q"), torch.cat([BASIS, torch.zeros(6, 2)], 1)),
    "columns of each class": (orthonormal("C", "d", "<=q"), torch.stack([BASIS, -BASIS, 0 * BASIS])),
    "no column": (orthonormal("d", "<=q"), torch.zeros(6, 0)),
    "a count": (Sent(whole=True), 7),
    "counts": (Sent((2,), whole=True), torch.tensor([1, 2])),
    "a mixture": (MIXTURE, TWO),
    "no mixture": (MIXTURE, torch.zeros(0, 3)),
    "class losses": (LOSSES, torch.tensor([-1.0, 0.0, 2.5])),
}


@pytest.mark.parametrize("case", GOOD)
def test_in_range(case):
    assert fault(*GOOD[case]) == ""


BAD = {
    "NaN": (Sent(), math.nan, "is nan, not -1e+06 to 1e+06"),
    "too large": (Sent(), 1.1e6, "is 1100000.0, not -1e+06 to 1e+06"),
    "an integer for a number": (Sent(), 3, "is int instead of a number"),
    "a truth value": (proportion(), True, "is bool instead of a number"),
    "text": (proportion(), "high", "is text instead of a number"),
    "nothing": (proportion(), None, "is NoneType instead of a number"),
    "a number for a count": (Sent(whole=True), 7.0, "is float instead of a whole number"),
    "400 digits": (Sent(whole=True), 10**400, "is a whole number of more than 12 digits, not whole"),
    "5,000 digits": (Sent(whole=True), -(10**5000), "is a whole number of more than 12 digits, not whole"),
    "above one": (proportion(), 1.0 + 1e-6, "is 1.000001, not 0 to 1"),
    "just above one": (proportion(1), torch.tensor([1.0000001]), "reaches from 1 to 1, not 0 to 1"),
    "negative": (at_least_zero(2), torch.tensor([1.0, -1e-9]), "reaches from -1e-09 to 1, not 0 to 1e+06"),
    "half a flag": (flags(2), HALF, "holds other numbers than 0 or 1"),
    "too much": (probabilities(2), 1.01 * HALF, "holds other numbers than probabilities"),
    "a negative one": (probabilities(2), torch.tensor([1.5, -0.5]), "not probabilities"),
    "long columns": (orthonormal("d", "q"), 1.02 * BASIS, "holds other numbers than orthonormal columns"),
    "the same twice": (orthonormal("d", "q"), torch.cat([BASIS, BASIS[:, :1]], 1), "other numbers than orthonormal"),
    "float64": (proportion(2), HALF.double(), "holds float64 instead of float32"),
    "float16": (proportion(2), HALF.half(), "holds float16 instead of float32"),
    "whole": (proportion(2), torch.tensor([0, 1]), "holds int64 instead of float32"),
    "true": (proportion(2), torch.tensor([False, True]), "holds bool instead of float32"),
    "complex": (proportion(2), HALF + 0j, "holds complex64 instead of float32"),
    "sparse": (proportion(2), HALF.to_sparse(), "holds sparse or nested float32 instead of float32"),
    "quantised": (
        proportion(2),
        torch.quantize_per_tensor(HALF, 0.1, 0, torch.qint8),
        "holds qint8 instead of float32",
    ),
    "meta": (proportion(2), torch.empty(2, device="meta"), "holds float32 on meta instead of float32"),
    "half a mixture": (MIXTURE, TWO[:1], "holds other numbers than a mixture"),
    "a point": (MIXTURE, TWO * torch.tensor([1.0, 0.0, 1.0]), "holds other numbers than a mixture"),
    "heavy": (MIXTURE, TWO * torch.tensor([1.0, 1.0, 1.1]), "holds other numbers than a mixture"),
    "a mean outside": (MIXTURE, TWO + torch.tensor([0.5, 0.0, 0.0]), "not a mixture"),
    "half unseen": (LOSSES, torch.tensor([-0.5, 0.0]), "holds other numbers than losses, or -1"),
}


@pytest.mark.parametrize("case", BAD)
def test_out_of_range(case):
    says, value, reason = BAD[case]
    assert reason in fault(says, value)


def test_a_bare_shape_has_a_bound_too():
    assert in_full(("C",)) == Sent(("C",), -LARGEST, LARGEST)
    assert in_full(proportion()) == proportion()
    assert "not -1e+06 to 1e+06" in fault(in_full(("C",)), torch.tensor([2e6]))


def test_texts_are_cut_and_made_plain():
    assert clean_text("a reason") == "a reason"
    assert clean_text("a\x1b[31m\nb\ud800c") == "a [31m b c"
    assert clean_text("x" * 10**6) == "x" * 200 + "..."
    assert names({"b": 1, 3: 2, "\ud800": 0}) == "[' ', '3', 'b']"
    assert len(names({str(k): 0 for k in range(10**5)})) < 250
    assert short(10**4999) == "a whole number of more than 12 digits"
    assert short(24) == "24"
