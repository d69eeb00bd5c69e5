"""Made-up contexts are real ones: what a hook does with them is what it does in a run."""

from dataclasses import dataclass, replace

import pytest
import torch

from fedsieve.base.errors import RunError
from fedsieve.core import Method, Part, Share, Stage, proportion
from fedsieve.core.types import Told
from fedsieve.methods.scaffold import ControlVariates
from fedsieve.testing import Contract, fake_client, fake_reports, fake_server, tiny_federation

SAYS = [[2.0, 0.0, 0.5], [0.0, 1.0, -1.0], [0.0, 0.0, 3.0], [1.0, 0.0, 0.0]]


@dataclass(frozen=True, kw_only=True)
class Noted(Part):
    """Declares one of everything."""

    down = {"share": ()}
    up = {"share": proportion(), "row": ("C",)}
    keeps = {"seen": ()}
    remembers = {"last": ("K", "C"), "total": ("C",)}
    writes = frozenset({"share"})

    def recall(self, s):
        return {"total": torch.zeros(s.plan.n_classes)}

    def brief(self, s, client):
        return {"share": 0.5}

    def finish(self, c):
        return {"share": 0.5, "row": torch.zeros(c.n_classes)}

    def learn(self, s, ups, w):
        notes = s.notes(ups)
        s.memory["total"] = s.memory["total"] + sum(note.tensor("row") for note in notes.values())
        s.columns.write("share", {k: note.number("share") for k, note in notes.items()})


def test_a_client_whose_model_says_what_it_is_told():
    c = fake_client(Noted(), [0, 1, 2, 0], SAYS, brief={"share": 0.25}, keep={"seen": torch.tensor(3)}, t=1, batch=2)
    assert torch.equal(c.logits(c.nets[0]), torch.tensor(SAYS))
    assert c.labels.given.tolist() == [0, 1, 2, 0]
    assert c.labels.target.argmax(1).tolist() == [0, 1, 2, 0]
    assert (c.t, c.fit.batch, c.n_classes) == (1, 2, 3)
    assert c.brief(Noted()).number("share") == 0.25
    assert int(c.keep(Noted())["seen"]) == 3
    with pytest.raises(RunError, match="FS206"):
        c.keep(Noted())["other"] = torch.zeros(1)
    with pytest.raises(RunError, match=r"looks at the public data without declaring them .*\[FS206\]"):
        assert c.public


def test_a_client_of_the_tiny_federation_is_what_the_host_makes_of_it():
    plan = Contract.of("fednoro", {"rounds": 6}).plan(tiny_federation())
    part = plan.stages[2].parts[0]
    c = fake_client(part, plan=plan, id=2, stage=2, t=4, brief={"noisy": True})
    assert c.labels.given.tolist() == tiny_federation().given[2].tolist()
    assert torch.equal(c.nets[0].received, plan.initial[0])
    assert c.clock(part).t == 4
    moved = tuple(vector + 1 for vector in plan.initial)
    assert torch.equal(fake_client(part, plan=plan, models=moved).nets[0].vector, moved[0])


def test_a_server_remembers_what_it_is_given():
    s = fake_server(Noted(), columns={"share": [0.1, 0.2, 0.3, 0.4]}, rows={"last": {1: torch.ones(4)}})
    assert s.columns["share"].tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert list(s.rows("last")) == [1]
    assert s.memory["total"].tolist() == [0.0] * 4, "what `recall` begins with"
    ups = fake_reports(Noted(), {2: {"share": 0.9, "row": torch.arange(4.0)}})
    Noted().learn(s, {**ups, 3: replace(ups[2], client=3, models=None, notes={})}, {2: 1.0})
    assert s.columns["share"].tolist() == pytest.approx([0.1, 0.2, 0.9, 0.4])
    assert s.memory["total"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert fake_server(Noted(), memory={"total": torch.ones(4)}).memory["total"].tolist() == [1.0] * 4


def test_what_a_part_keeps_can_be_counted_and_dropped():
    s = fake_server(Noted(), columns={"share": [0.1, 0.2, 0.3, 0.4]})
    assert (len(s.memory), len(s.columns), sorted(s.columns)) == (1, 2, ["group", "share"])
    del s.memory["total"]
    assert (len(s.memory), s.memory.get("total")) == (0, None)
    kept = fake_client(Noted(), keep={"seen": torch.tensor(3)}).keep(Noted())
    assert len(kept) == 1
    del kept["seen"]
    assert (len(kept), list(kept)) == (0, [])


def test_hooks_of_the_base_change_nothing():
    """So that a part may call them by `super()`, whatever it is mixed with."""
    part = Part()
    s, c = fake_server(Noted()), fake_client(Noted(), [0, 1, 2, 0], SAYS)
    net, batch, ups, w = c.nets[0], c.batch(torch.arange(4), 0), fake_reports(part, {1: {}}), {1: 0.5}
    assert (part.recall(s), part.brief(s, 1), part.finish(c), part.answer(c, "x", Told({}))) == ({}, {}, {}, {})
    assert (part.eligible(s, [1, 3]), part.weigh(s, ups, w), [*part.show(s)]) == ([1, 3], w, [])
    assert list(part.talk(s, "start")) == []
    moved = tuple(model + 1 for model in s.models)
    assert part.step(s, s.models, moved) is moved
    assert part.relabel(c, net, c.labels) is c.labels
    assert float(part.loss(c, net, batch)) == float(part.term(c, net, batch)) == 0.0


def test_a_report_of_some_sections_is_completed_before_it_predicts():
    """The classifier alone travels; what the server knows of the rest is its own."""
    method = Method("own", (Stage(parts=(Noted(),)),), share=Share(up=("head",)))
    s = fake_server(Noted(), plan=Contract.of(method, {"model": "mlp"}).plan(tiny_federation()))
    reported = (torch.arange(float(s.plan.sizes["U"])),)
    full = s.complete(reported)
    assert len(reported[0]) < len(full[0])
    samples = fake_client(Noted()).samples
    assert torch.equal(s.predict(reported, samples).logits, s.predict(full, samples).logits)
    assert not torch.equal(s.predict(reported, samples).logits, s.predict(s.models, samples).logits)


def test_a_method_by_hand():
    """SCAFFOLD's server: c ← c + (1/K) Σ Δc over four clients, of which one reports."""
    part = ControlVariates()
    s = fake_server(part, model="mlp", **{"model.hidden": [6]})
    wide = s.plan.sizes["W"]
    part.learn(s, fake_reports(part, {1: {"dc": torch.full((1, wide), 2.0)}}), {1: 1.0})
    assert torch.equal(s.memory["c"], torch.full((1, wide), 0.5))


def test_values_are_read_as_what_they_are():
    told = Told({"row": torch.arange(3.0), "scalar": torch.tensor(2.5), "share": 0.5, "on": True, "text": "x"})
    assert told.tensor("row").tolist() == [0.0, 1.0, 2.0]
    assert (told.number("share"), told.number("scalar"), told.flag("on")) == (0.5, 2.5, True)
    assert list(told) == ["row", "scalar", "share", "on", "text"]
    with pytest.raises(RunError, match="'share' is read as a tensor, but is float"):
        told.tensor("share")
    with pytest.raises(RunError, match="'row' is read as a number, but is a tensor of the shape"):
        told.number("row")
    with pytest.raises(RunError, match="'text' is read as a number, but is text"):
        told.number("text")
