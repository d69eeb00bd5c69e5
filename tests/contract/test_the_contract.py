"""The contract can fail: each of its checks catches a method that breaks just what it promises."""

from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedsieve.base.errors import RunError
from fedsieve.core.part import Method, Part, Share, Stage
from fedsieve.core.types import Ask, Topic
from fedsieve.parts.losses import CrossEntropy
from fedsieve.testing import CHECKS, Contract, check_method

MLP = {"model": "mlp", "model.hidden": [8]}
BY_NAME = {check.__name__: check for check in CHECKS}
CALLS: Counter = Counter()


@dataclass(frozen=True, kw_only=True)
class Honest(Part):
    """Uses every hook and keeps every promise."""

    down = {"level": (2,)}
    up = {"mean": ("C",)}
    keeps = {"seen": ()}
    remembers = {"level": (2,)}

    def recall(self, s):
        return {"level": torch.zeros(2)}

    def brief(self, s, client):
        return {"level": s.memory["level"]}

    def term(self, c, net, batch):
        return 0.01 * net.features(batch).square().mean()

    def gradient(self, c, net, batch):
        net.grad.add_(net.weights, alpha=0.01)

    def finish(self, c):
        c.keep(self)["seen"] = torch.tensor(c.round)
        return {"mean": c.outputs(c.nets[0]).logits.mean(0)}

    def weigh(self, s, ups, w):
        return {k: v * (1.0 + k) for k, v in w.items()}

    def learn(self, s, ups, w):
        total = sum(up.notes[self.name]["mean"][:2] * w[k] for k, up in ups.items() if k in w)
        s.memory["level"] = s.memory["level"] + total


@dataclass(frozen=True, kw_only=True)
class Idle(Part):
    """Takes every gradient away."""

    def gradient(self, c, net, batch):
        net.grad.zero_()


@dataclass(frozen=True, kw_only=True)
class Restless(Part):
    """Changes the model before any training."""

    def start(self, c):
        c.nets[0].vector.mul_(0.9)


@dataclass(frozen=True, kw_only=True)
class Boundless(Part):
    """Weights whose sum is not a number."""

    def weigh(self, s, ups, w):
        return dict.fromkeys(w, 1.7e308)


@dataclass(frozen=True, kw_only=True)
class LastWins(Part):
    """Remembers whoever reported last."""

    up = {"who": ()}
    remembers = {"last": ()}

    def recall(self, s):
        return {"last": torch.tensor(-1.0)}

    def finish(self, c):
        return {"who": float(c.id)}

    def learn(self, s, ups, w):
        s.memory["last"] = torch.tensor(float(list(ups)[-1]))


@dataclass(frozen=True, kw_only=True)
class FirstWeighsMost(Part):
    def weigh(self, s, ups, w):
        return {k: 1.0 / (1 + place) for place, k in enumerate(w)}


@dataclass(frozen=True, kw_only=True)
class Detached(Part):
    """A term that no parameter feels."""

    def term(self, c, net, batch):
        return net.features(batch).detach().square().mean()


@dataclass(frozen=True, kw_only=True)
class Constant(Part):
    """A loss that no parameter feels."""

    def loss(self, c, net, batch):
        return 0.0 * net.logits(batch).sum()


@dataclass(frozen=True, kw_only=True)
class NoEdit(Part):
    def gradient(self, c, net, batch):
        net.grad.add_(0.0)


@dataclass(frozen=True, kw_only=True)
class WrongShape(Part):
    """Declares C numbers and sends one more."""

    up = {"counts": ("C",)}

    def finish(self, c):
        return {"counts": torch.zeros(c.n_classes + 1)}


@dataclass(frozen=True, kw_only=True)
class Heavier(Part):
    """Declares floats and sends something of twice the weight."""

    up = {"counts": ("C",)}

    def finish(self, c):
        return {"counts": torch.zeros(c.n_classes, dtype=torch.float64)}


@dataclass(frozen=True, kw_only=True)
class Undeclared(Part):
    def finish(self, c):
        return {"secret": c.labels.given}


@dataclass(frozen=True, kw_only=True)
class Fragile(Part):
    """Divides by the sizes of classes, some of which are empty."""

    up = {"counts": ("C",)}

    def finish(self, c):
        return {"counts": torch.bincount(c.labels.given, minlength=c.n_classes).float()}

    def learn(self, s, ups, w):
        for up in ups.values():
            least = up.notes[self.name]["counts"].min() if up.notes else torch.tensor(1.0)
            s.models = tuple(model * (least / least) for model in s.models)


@dataclass(frozen=True, kw_only=True)
class FragileClient(Part):
    """Breaks where a client has one class only."""

    def start(self, c):
        counts = torch.bincount(c.labels.given, minlength=c.n_classes).tolist()
        _ = [1 / count for count in counts]


@dataclass(frozen=True, kw_only=True)
class Moody(Part):
    """Depends on how often it was ever called."""

    def gradient(self, c, net, batch):
        CALLS["ever"] += 1
        net.grad.mul_(1 + 0.01 * CALLS["ever"])


@dataclass(frozen=True, kw_only=True)
class Forgetful(Part):
    """Keeps its state in this process, so that a run that was cut off cannot find it again."""

    def start(self, c):
        if c.round == 0 and c.id == 0:
            CALLS.clear()
        CALLS[c.id] += 1

    def gradient(self, c, net, batch):
        net.grad.mul_(float(CALLS[c.id]))


@dataclass(frozen=True, kw_only=True)
class Peeking(Part):
    """Looks at which labels are right without declaring it."""

    def relabel(self, c, net, labels):
        return labels.only(c.served)


@dataclass(frozen=True, kw_only=True)
class AsGiven(Part):
    """Trains on labels as they were delivered, whatever was corrected since."""

    def loss(self, c, net, batch):
        return cross_entropy(net.logits(batch), net.given(batch), reduction="none")


@dataclass(frozen=True, kw_only=True)
class SecretReader(Part):
    """Follows the labels without declaring it."""

    def term(self, c, net, batch):
        return (net.logits(batch) * net.target(batch)).sum(1).square().mean()


@dataclass(frozen=True, kw_only=True)
class SecretTeller(Part):
    """Tells how many labels of each class there are; no model changes by it."""

    up = {"counts": ("C",)}

    def finish(self, c):
        return {"counts": c.labels.target.sum(0)}


@dataclass(frozen=True, kw_only=True)
class SecretAnswerer(Part):
    topics = {"counts": Topic({}, {"counts": ("C",)})}

    def talk(self, s, moment):
        if moment == "start":
            yield Ask("counts", {client: {} for client in s.clients})

    def answer(self, c, topic, question):
        return {"counts": c.labels.target.sum(0)}


@dataclass(frozen=True, kw_only=True)
class SecretKeeper(Part):
    keeps = {"given": ("n",)}

    def start(self, c):
        c.keep(self)["given"] = c.labels.given


@dataclass(frozen=True, kw_only=True)
class LabelFree(Part):
    """Reads none, whatever it does with the table."""

    def relabel(self, c, net, labels):
        return labels.only(c.outputs(net).logits.softmax(1).amax(1) >= 0.0)

    def loss(self, c, net, batch):
        return (net.logits(batch) - net.features(batch).mean()).square().mean()


@dataclass(frozen=True, kw_only=True)
class Choosy(Part):
    """Refuses clients without samples."""

    def learn(self, s, ups, w):
        if any(up.n == 0 for up in ups.values()):
            raise RunError("FS299", "a client has no samples. Leave it out")


@dataclass(frozen=True, kw_only=True)
class Leaning(Part):
    """Reads no labels, but works only beside a part that does."""

    def start(self, c):
        if "CrossEntropy" not in c.plan.stages[c.stage].names():
            raise RunError("FS299", "nobody reads labels. Add a part that does")


@dataclass(frozen=True, kw_only=True)
class InPlace(Part):
    """Halves the step on the very tensors that others hold."""

    def step(self, s, before, after):
        for old, new in zip(before, after, strict=True):
            new.add_(old).mul_(0.5)
        return after


def method(*parts):
    return Method("own", (Stage(parts=parts),))


BROKEN = {
    "a_round_changes_the_weights": (method(Idle()), "the model is what it was at the start"),
    "zero_epochs_return_the_weights": (method(Restless()), "client 0 changed the model without training"),
    "weights_sum_to_one": (method(Boundless()), "group 0 sums to 0"),
    "client_order_does_not_matter": (method(LastWins()), "LastWins.last depends on the order of the reports"),
    "auxiliary_losses_have_a_gradient": (method(Detached()), "Detached.term has no gradient"),
    "server_models_are_replaced": (method(InPlace()), r"InPlace.step changes a model in place"),
    "declared_payloads_are_real": (method(WrongShape()), r"WrongShape.counts has the shape \(5,\)"),
    "degenerate_clients_are_survived": (method(Fragile()), "the model holds NaN"),
    "two_runs_are_equal": (method(Moody()), "two runs with one seed differ"),
    "interrupted_and_resumed_is_equal": (method(Forgetful()), "cut off after 4 messages and resumed"),
    "a_correction_is_followed": (method(AsGiven()), "what a correction wrote before training is not all"),
    "labels_are_read_as_declared": (method(LabelFree(), SecretReader()), "which none of LabelFree, SecretReader"),
}
SECRET = "without the clients' labels, which none of SecretReader declares to read, the result differs"
MORE = {
    "weights by order": ("client_order_does_not_matter", method(FirstWeighsMost()), "the weights depend on the order"),
    "a constant loss": ("auxiliary_losses_have_a_gradient", method(Constant()), "Constant.loss has no gradient"),
    "an empty edit": ("auxiliary_losses_have_a_gradient", method(NoEdit()), "NoEdit.gradient has no gradient"),
    "labels beside a part that may": ("labels_are_read_as_declared", method(CrossEntropy(), SecretReader()), SECRET),
    "labels as an index": ("labels_are_read_as_declared", method(AsGiven()), "none of AsGiven declares to read"),
    "labels that are sent": ("labels_are_read_as_declared", method(SecretTeller()), "SecretTeller: counts"),
    "labels that are told": ("labels_are_read_as_declared", method(SecretAnswerer()), r"differs \(0: counts\)"),
    "labels that are kept": ("labels_are_read_as_declared", method(SecretKeeper()), "keep/SecretKeeper/given"),
    "twice the weight": ("declared_payloads_are_real", method(Heavier()), "weighs 32 bytes, the disclosure says 16"),
}


def test_every_check_has_a_method_that_it_catches():
    assert list(BROKEN) == list(BY_NAME)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_honest_method_passes(check):
    check(Contract.of(method(Honest()), MLP))


@pytest.mark.parametrize("name", BROKEN)
def test_a_check_catches_what_it_is_for(name):
    broken, message = BROKEN[name]
    with pytest.raises(AssertionError, match=message):
        BY_NAME[name](Contract.of(broken, MLP))


@pytest.mark.parametrize(("name", "broken", "message"), MORE.values(), ids=MORE.keys())
def test_other_ways_of_breaking_it(name, broken, message):
    with pytest.raises(AssertionError, match=message):
        BY_NAME[name](Contract.of(broken, MLP))


def test_the_whole_contract_names_the_method_and_the_check():
    with pytest.raises(AssertionError, match="a_round_changes_the_weights: the model is what it was"):
        check_method(method(Idle()), **MLP)
    with pytest.raises(AssertionError, match=r"fedprox: auxiliary_losses_have_a_gradient: Prox\.gradient"):
        check_method("fedprox", **MLP, **{"fedprox.mu": 0})


def test_what_is_not_declared_does_not_even_travel():
    with pytest.raises(RunError, match=r"Undeclared.finish returned \['secret'\], but the part declares \[\]"):
        check_method(method(Undeclared()), **MLP)


def test_the_truth_is_not_served_to_who_does_not_declare_it():
    with pytest.raises((RunError, AssertionError)):
        check_method(method(Peeking()), **MLP)


def test_a_client_half_that_crashes_on_odd_data_is_caught():
    with pytest.raises(AssertionError):
        BY_NAME["degenerate_clients_are_survived"](Contract.of(method(FragileClient()), MLP))


def test_a_method_may_refuse_odd_data_in_words():
    BY_NAME["degenerate_clients_are_survived"](Contract.of(method(Choosy()), MLP))


def test_what_travels_one_way_need_not_come_back_as_it_went():
    own = Method("own", share=Share(up=("head",)))
    BY_NAME["zero_epochs_return_the_weights"](Contract.of(own, MLP))


def test_what_cannot_run_without_the_parts_that_read_labels_is_left_out():
    own = method(Leaning(), CrossEntropy())
    BY_NAME["a_round_changes_the_weights"](Contract.of(own, MLP))
    BY_NAME["labels_are_read_as_declared"](Contract.of(own, MLP))


def test_parts_that_read_no_labels_pass_alone_and_beside_others():
    for own in (method(LabelFree()), method(LabelFree(), Honest()), method(Honest(), CrossEntropy())):
        BY_NAME["labels_are_read_as_declared"](Contract.of(own, MLP))


@pytest.mark.parametrize("own", [method(), method(CrossEntropy()), method(Honest(), CrossEntropy())])
def test_methods_may_be_given_as_such(own):
    check_method(own, **MLP)
