"""From reports to the next model: weights by hand, sums in float64, streaming or not."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from fedsieve.base.errors import RunError
from fedsieve.core.aggregate import RunningMean
from fedsieve.core.combiners import Mean, Median
from fedsieve.core.part import Method, Part, Share, Stage
from fedsieve.testing import Contract, tiny_federation

MLP = {"model": "mlp", "model.hidden": [8], "rounds": 1}


def uneven():
    """Clients of 24, 12, 6 and 3 samples."""
    whole = tiny_federation()
    sizes = (24, 12, 6, 3)
    return replace(
        whole,
        rows=tuple(rows[:n] for rows, n in zip(whole.rows, sizes, strict=True)),
        given=tuple(given[:n] for given, n in zip(whole.given, sizes, strict=True)),
    )


@dataclass(frozen=True, kw_only=True)
class Fixed(Part):
    """Weights as written, whatever was given."""

    values: tuple
    weighs = "replace"

    def weigh(self, s, ups, w):
        return {k: self.values[k] for k in ups}


@dataclass(frozen=True, kw_only=True)
class Doubled(Part):
    """Scales the first client's weight, so that the order of weighers shows."""

    def weigh(self, s, ups, w):
        return w | {0: 2 * w[0]}


@dataclass(frozen=True, kw_only=True)
class Scaled(Part):
    """A weigher that does without single reports."""

    sees = "sum"

    def weigh(self, s, ups, w):
        return {k: 3 * v for k, v in w.items()}


@dataclass(frozen=True, kw_only=True)
class Short(Part):
    def weigh(self, s, ups, w):
        return {k: v for k, v in w.items() if k}


@dataclass(frozen=True, kw_only=True)
class Onlooker(Part):
    """Does nothing, but wants to see single reports, so nothing can be streamed."""

    def learn(self, s, ups, w):
        assert all(up.models for up in ups.values())


def ran(*parts, **stage):
    with Contract.of(Method("own", (Stage(parts=parts, **stage),)), MLP).trial(uneven()) as trial:
        state = trial.run()
    return trial, state.models[0][0]


def weighted_mean(trial, weights):
    vectors = np.stack([up.models[0].double().numpy() for up in trial.record.ups])
    return np.average(vectors, axis=0, weights=weights)


def test_a_running_mean_by_hand():
    mean = RunningMean()
    mean.add((torch.tensor([1.0, 2.0]), torch.tensor([0.0])), 1.0)
    mean.add((torch.tensor([5.0, 0.0]), torch.tensor([8.0])), 3.0)
    first, second = mean.result()
    assert first.tolist() == [4.0, 0.5]
    assert second.tolist() == [6.0]
    assert first.dtype == torch.float32


def test_sums_are_in_float64():
    mean = RunningMean()
    for value in (1e8, 1.0, -1e8):
        mean.add((torch.tensor([value]),), 1.0)
    assert mean.result()[0].item() == pytest.approx(1 / 3)


@pytest.mark.parametrize(("base", "weights"), [("size", (24, 12, 6, 3)), ("equal", (1, 1, 1, 1))])
def test_models_are_weighed_by_size_or_equally(base, weights):
    trial, model = ran(base=base)
    assert np.allclose(model.numpy(), weighted_mean(trial, weights), atol=1e-7)
    expected = {k: weight / sum(weights) for k, weight in enumerate(weights)}
    assert trial.record.rounds[0].weights == pytest.approx(expected)


def test_streaming_is_not_streaming_bit_for_bit():
    (_, streamed), (_, kept) = ran(), ran(Onlooker())
    assert torch.equal(streamed, kept)


def test_what_was_streamed_is_not_kept():
    trial, _ = ran()
    assert all(up.models == () for up in trial.record.rounds[0].ups.values())


def test_replacing_runs_first_then_scaling():
    for parts in ((Fixed(values=(1, 2, 3, 4)), Doubled()), (Doubled(), Fixed(values=(1, 2, 3, 4)))):
        trial, model = ran(*parts)
        assert np.allclose(model.numpy(), weighted_mean(trial, (2, 2, 3, 4)), atol=1e-7)


def test_a_weight_of_zero_takes_a_report_out():
    trial, model = ran(Fixed(values=(0, 1, 0, 0)))
    assert torch.equal(model, trial.record.ups[1].models[0])
    assert trial.record.rounds[0].weights == {0: 0.0, 1: 1.0, 2: 0.0, 3: 0.0}


def test_all_weights_zero_fall_back_to_the_former_and_say_so():
    trial, model = ran(Fixed(values=(0, 0, 0, 0)))
    assert np.allclose(model.numpy(), weighted_mean(trial, (24, 12, 6, 3)), atol=1e-7)
    (event,) = trial.record.rounds[0].events
    assert event.code == "FS208"
    assert "Fixed" in event.message


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_a_weight_that_cannot_be_one_stops_the_run(bad):
    with pytest.raises(RunError, match=f"Fixed gives client 2 the weight {bad}") as problem:
        ran(Fixed(values=(1, 1, bad, 1)))
    assert problem.value.code == "FS207"


def test_every_report_must_be_weighed():
    with pytest.raises(RunError, match=r"Short weighs clients \[1, 2, 3\], but \[0, 1, 2, 3\] reported"):
        ran(Short())


def test_a_weigher_that_needs_no_single_report_still_weighs():
    trial, model = ran(Scaled())
    assert np.allclose(model.numpy(), weighted_mean(trial, (24, 12, 6, 3)), atol=1e-7)


def test_the_median_is_taken_by_coordinate():
    trial, model = ran(combine=Median())
    vectors = np.stack([up.models[0].numpy() for up in trial.record.ups])
    assert np.allclose(model.numpy(), np.median(vectors, axis=0), atol=1e-7)


def test_only_the_sections_that_travelled_are_written():
    method = Method("own", (Stage(combine=Mean()),), share=Share(up=("head",)))
    with Contract.of(method, MLP).trial(uneven()) as trial:
        model = trial.run().models[0][0]
        head = trial.plan.layout.slices(("head",))[0]
        assert torch.equal(model[: head.start], trial.plan.initial[0][: head.start])
        assert np.allclose(model[head].numpy(), weighted_mean(trial, (24, 12, 6, 3)), atol=1e-7)


@pytest.mark.parametrize(("weights", "share"), [("size", 24 / 45), ("equal", 0.25)])
def test_fedavg_weighs_by_size_or_equally(weights, share):
    with Contract.of("fedavg", MLP | {"fedavg.weights": weights}).trial(uneven()) as trial:
        trial.run()
        assert trial.record.rounds[0].weights[0] == pytest.approx(share)
