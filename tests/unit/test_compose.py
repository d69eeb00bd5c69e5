"""Methods compose, or are refused when built with a message that says what to do."""

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pytest
import torch

from fedsieve.base.errors import CompositionError
from fedsieve.core.combiners import Mean, Median
from fedsieve.core.part import Method, Part, Share, Stage, defines
from fedsieve.core.samplers import Nobody, Sweep, Uniform
from fedsieve.core.types import Ask, Reads, Topic
from fedsieve.evaluate.disclosure import secure_aggregation
from fedsieve.methods import METHODS, build_method
from fedsieve.methods.compose import Surroundings, check, complete, compose
from fedsieve.models.heads import Projector, SideHead
from fedsieve.parts.losses import CrossEntropy, GeneralisedCrossEntropy, MeanAbsoluteError
from fedsieve.parts.selection import in_warmup
from fedsieve.parts.server_fit import ServerFit
from fedsieve.parts.terms import Prox
from fedsieve.testing import Contract, tiny_federation

PREDICTOR = SideHead(name="predictor", base="projector")


@dataclass(frozen=True, kw_only=True)
class Trusting(Part):
    weighs = "replace"

    def weigh(self, s, ups, w):
        return w


@dataclass(frozen=True, kw_only=True)
class Doubting(Part):
    weighs = "replace"

    def weigh(self, s, ups, w):
        return w


@dataclass(frozen=True, kw_only=True)
class Scaling(Part):
    def weigh(self, s, ups, w):
        return {k: 2 * v for k, v in w.items()}


@dataclass(frozen=True, kw_only=True)
class Grouping(Part):
    writes = frozenset({"group"})


@dataclass(frozen=True, kw_only=True)
class Regrouping(Part):
    writes = frozenset({"group"})


@dataclass(frozen=True, kw_only=True)
class Marking(Part):
    writes = frozenset({"noisy"})


@dataclass(frozen=True, kw_only=True)
class Remarking(Part):
    writes = frozenset({"noisy"})


@dataclass(frozen=True, kw_only=True)
class Needing(Part):
    needs = frozenset({"noisy"})


@dataclass(frozen=True, kw_only=True)
class Pair(Part):
    nets = 2


@dataclass(frozen=True, kw_only=True)
class Headed(Part):
    heads = ("projector",)


@dataclass(frozen=True, kw_only=True)
class Talking(Part):
    topics = {"x": Topic({}, {})}

    def talk(self, s, moment):
        yield Ask("x", {})


@dataclass(frozen=True, kw_only=True)
class Conversing(Talking):
    def answer(self, c, topic, question):
        return {}


@dataclass(frozen=True, kw_only=True)
class LabelTelling(Conversing):
    labels = True


@dataclass(frozen=True, kw_only=True)
class Answering(Part):
    def answer(self, c, topic, question):
        return {}


@dataclass(frozen=True, kw_only=True)
class Declaring(Part):
    up = {"x": ()}


@dataclass(frozen=True, kw_only=True)
class Briefing(Part):
    def brief(self, s, client):
        return {}


@dataclass(frozen=True, kw_only=True)
class Reading(Part):
    reads = Reads.UNLABELLED | Reads.CLEAN


@dataclass(frozen=True, kw_only=True)
class Learning(Part):
    def learn(self, s, ups, w):
        pass


def single(name, *parts, **settings):
    fields = {key: settings.pop(key) for key in ("sampler", "combine", "base", "epochs", "rounds") if key in settings}
    return Method(name, (Stage(parts=parts, **fields),), **settings)


def frame(name="frame", *names, parts=()):
    return Method(name, tuple(Stage(n, rounds=1, parts=parts) for n in names or ("1", "2")))


def built(*methods, around=None, rounds=4, **choices):
    method = complete(compose(*methods, **choices), rounds=rounds, fraction=1.0, clients=4, local_norm=False)
    check(method, around or Surroundings())
    return method


@pytest.mark.parametrize("method", ["fedprox", "scaffold", "moon", "fedrn", "robust-fl", "fedcorr", "fednoro"])
def test_what_works_with_a_common_model_is_refused_where_there_is_none(method):
    both = complete(build_method(f"local+{method}", {}), rounds=4, fraction=1.0, clients=4, local_norm=False)
    with pytest.raises(CompositionError, match="FS114"):
        check(both, Surroundings())


@pytest.mark.parametrize("method", ["gce", "co-teaching", "joint", "selfie", "fedlsr", "ksim"])
def test_what_a_client_can_do_alone_goes_with_learning_alone(method):
    both = build_method(f"local+{method}", {})
    check(complete(both, rounds=4, fraction=1.0, clients=4, local_norm=False), Surroundings())


def test_laps_fit_into_their_share_and_cost_what_they_visit():
    """Four clients, two a round: a lap of one-client rounds takes four rounds and costs two."""
    for laps, share, rounds, lengths in (
        ((1, 5), 0.5, 8, [2 * 4, 4]),
        ((1, 5), 0.5, 2, [1 * 4, 0]),
        ((3, 5), 0.5, 8, [3 * 4, 2]),
        ((7, 7), None, 20, [7 * 4, 6]),
    ):
        method = Method("own", (Stage("laps", laps=laps, fraction=share, sampler=Sweep()), Stage()))
        done = complete(compose(method), rounds=rounds, fraction=0.5, clients=4, local_norm=False)
        assert [stage.rounds for stage in done.stages] == lengths


def prelude(name, *parts, **settings):
    return Method(name, (Stage(name, rounds=0, parts=parts),), **settings)


REFUSED = {
    "nothing": ("FS101", lambda: built(), "give at least one method"),
    "a field set twice": (
        "FS101",
        lambda: built(single("a", sampler=Uniform(fraction=0.5)), single("b", sampler=Sweep())),
        r"a and b both set 'sampler' .*compose\(a, b, sampler=\.\.\.\)",
    ),
    "two tests": ("FS101", lambda: built(Method("a", test="mean"), Method("b", test="groups")), "both set 'test'"),
    "the same part twice": (
        "FS102",
        lambda: built(single("a", Prox(mu=0.1)), single("b", Prox(mu=0.2))),
        r"stage 'train' has Prox\(mu=0.1\) and Prox\(mu=0.2\)",
    ),
    "two losses": (
        "FS103",
        lambda: built(single("a", MeanAbsoluteError()), single("b", GeneralisedCrossEntropy())),
        "two losses, MeanAbsoluteError and GeneralisedCrossEntropy.*keep one",
    ),
    "a server without a loss": (
        "FS103",
        lambda: Contract.of(single("a", ServerFit(parts=(Prox(),))), {}).plan(tiny_federation()),
        "exactly one loss, but its parts have none",
    ),
    "two replacing weighers": (
        "FS104",
        lambda: built(single("a", Trusting()), single("b", Doubting())),
        "Trusting and Doubting both replace.*Keep one",
    ),
    "two writers": (
        "FS105",
        lambda: built(prelude("a", Grouping()), single("b", Regrouping())),
        "Regrouping both write client column 'group'",
    ),
    "two writers in one stage": (
        "FS105",
        lambda: built(single("a", Marking()), single("b", Remarking())),
        "Marking and Remarking both write client column 'noisy'",
    ),
    "two frames": ("FS106", lambda: built(frame("a"), frame("b")), "a and b both have several stages.*Take the parts"),
    "an unknown stage": (
        "FS107",
        lambda: built(frame(), single("b", Prox(), where=("9",))),
        r"b: no stage '9'; the stages are \['1', '2'\]",
    ),
    "an unknown stage to follow": (
        "FS107",
        lambda: built(frame(), prelude("p", where=("9",))),
        r"p: no stage '9'; the stages are",
    ),
    "too few models": ("FS108", lambda: built(single("a", Pair())), "2 models per client, the method carries 1"),
    "a column nobody writes": ("FS109", lambda: built(single("a", Needing())), r"needs client column \['noisy'\].*Add"),
    "half a conversation": ("FS110", lambda: built(single("a", Talking())), "defines talk but not answer. Write"),
    "the other half": ("FS110", lambda: built(single("a", Answering())), "defines answer but not talk. Write"),
    "a declaration without a hook": ("FS110", lambda: built(single("a", Declaring())), r"\['x'\] but does not define"),
    "a brief without a declaration": ("FS110", lambda: built(single("a", Briefing())), "declares nothing in `down`"),
    "two open lengths": (
        "FS111",
        lambda: built(Method("a", (Stage("1"), Stage("2")))),
        r"stages \['1', '2'\] leave 'rounds' open.*Set the others'",
    ),
    "server data that is not there": (
        "FS112",
        lambda: built(single("a", Reading()), around=Surroundings(Reads.CLEAN)),
        "reads unlabelled server data.*Set server.unlabelled",
    ),
    "weights of what does not travel": (
        "FS114",
        lambda: built(single("a", Scaling(), share=Share(up=(), down=(), keep=("*",)))),
        "nothing is averaged.*Leave one out",
    ),
    "weights that are ignored": (
        "FS114",
        lambda: built(single("a", Scaling(), combine=Median())),
        "Scaling weighs reports, but Median ignores weights. Leave one out",
    ),
    "labels that are not there": (
        "FS115",
        lambda: built(single("a"), around=Surroundings(labelled=False)),
        "CrossEntropy reads client labels.*Take a method that reads none",
    ),
    "answers from labels that are not there": (
        "FS115",
        lambda: built(prelude("ask", LabelTelling()), around=Surroundings(labelled=False)),
        "LabelTelling reads client labels.*Take a method that reads none",
    ),
    "a missing head": ("FS116", lambda: built(single("a", Headed())), "needs the head 'projector'. Add it"),
    "an unknown head": (
        "FS116",
        lambda: Method("a", heads=("projector",)),
        "a: 'projector' is no head. Give Projector",
    ),
    "a head on nothing": (
        "FS116",
        lambda: Contract.of(Method("a", heads=(PREDICTOR,)), {}).plan(tiny_federation()).layout,
        "the head 'predictor' stands on 'projector', which the model does not have",
    ),
    "a head in the place of a section": (
        "FS116",
        lambda: Contract.of(Method("a", heads=(SideHead(name="body"),)), {}).plan(tiny_federation()).layout,
        "the model has a section 'body' already. Name the head otherwise",
    ),
    "one head with two settings": (
        "FS102",
        lambda: compose(Method("a", heads=(Projector(),)), Method("b", heads=(Projector(width=8),))),
        r"a and b bring the head 'projector' with different settings .*width=256.*width=8.*Give both the same",
    ),
    "an unknown section": (
        "FS116",
        lambda: Contract.of(Method("a", share=Share(up=("hed",))), {}).plan(tiny_federation()).up_slices,
        "no section 'hed'. Did you mean 'head'",
    ),
    "nothing to train": (
        "FS116",
        lambda: Contract.of(Method("a", share=Share(train=())), {}).plan(tiny_federation()),
        "a: Share.train chooses nothing of the model. Name a section",
    ),
    "single reports under secure aggregation": (
        "FS117",
        lambda: built(single("a", Learning()), around=Surroundings(secure_aggregation=True)),
        "secure aggregation is on, but Learning sees single reports",
    ),
    "single answers under secure aggregation": (
        "FS117",
        lambda: built(single("a", Conversing()), around=Surroundings(secure_aggregation=True)),
        "secure aggregation is on, but Conversing sees single reports",
    ),
    "a median under secure aggregation": (
        "FS117",
        lambda: built(single("a", combine=Median()), around=Surroundings(secure_aggregation=True)),
        "secure aggregation is on, but Median sees single reports",
    ),
}


@pytest.mark.parametrize(("code", "build", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refusals(code, build, message):
    with pytest.raises(CompositionError, match=message) as problem:
        build()
    assert problem.value.code == code
    assert not problem.value.message.endswith(".")
    assert "\n" not in problem.value.message


def test_an_explicit_choice_settles_a_disagreement():
    a, b = single("a", sampler=Uniform(fraction=0.5)), single("b", sampler=Sweep())
    assert compose(a, b, sampler=Sweep(size=2)).stages[0].sampler == Sweep(size=2)


def test_equal_settings_and_equal_parts_are_merged():
    one = compose(single("a", Prox(mu=1.0), base="equal"), single("b", Prox(mu=1.0), base="equal"))
    assert one.stages == (Stage(parts=(Prox(mu=1.0),), base="equal"),)


def test_open_fields_yield_and_defaults_are_filled_last():
    method = built(single("a", Prox()), single("b", base="equal", nets=2), rounds=7)
    stage = method.stages[0]
    assert stage == Stage("train", 7, (Prox(), CrossEntropy()), Uniform(fraction=1.0), Mean(), "equal", None)
    assert (method.nets, method.turns, method.share, method.test) == (2, "together", Share(), "groups")


def test_the_open_stage_gets_the_rounds_that_are_left():
    method = built(Method("a", (Stage("1", rounds=3), Stage("2"), Stage("3", rounds=2))), rounds=9)
    assert [stage.rounds for stage in method.stages] == [3, 4, 2]
    assert [s.rounds for s in built(Method("a", (Stage("1", rounds=3), Stage("2"))), rounds=2).stages] == [3, 0]


def test_extra_rounds_cost_nothing_and_stay_extra():
    frame = Method("f", (Stage("pre", fraction=0.5, extra=True), Stage("train")))
    method = built(frame, single("p", Prox()), rounds=9)
    assert [(stage.rounds, stage.extra) for stage in method.stages] == [(5, True), (9, False)]
    with pytest.raises(CompositionError, match="stage 'train' is extra but leaves 'rounds' open") as problem:
        built(Method("a", (Stage(extra=True),)), single("p", Prox()))
    assert problem.value.code == "FS111"


def test_a_single_stage_joins_every_stage_in_which_clients_train():
    around = Method(
        "f", (Stage("ask", rounds=0), Stage("alone", rounds=1, sampler=Nobody()), Stage("1", rounds=2), Stage("2"))
    )
    joined = {stage.name: stage.parts for stage in compose(single("p", Prox()), around).stages}
    assert joined == {"ask": (), "alone": (), "1": (Prox(),), "2": (Prox(),)}
    only = compose(around, single("p", Prox(), where=("2",)))
    assert [stage.name for stage in only.stages if stage.parts] == ["2"]
    assert [stage.rounds for stage in only.stages] == [0, 1, 2, None], "the frame keeps its lengths"


def test_preludes_come_first_or_after_the_stage_they_name():
    ask = prelude("ask", Conversing())
    assert [s.name for s in compose(Method("fedavg"), ask).stages] == ["ask", "train"]
    assert [s.name for s in compose(frame(), replace(ask, where=("1",))).stages] == ["1", "ask", "2"]
    assert [s.name for s in compose(frame(), replace(ask, where=("1", "2"))).stages] == ["1", "2", "ask"]


def test_a_prelude_alone_brings_its_own_training_stage():
    assert compose(prelude("ask", alone=Stage("own", base="equal"))).stages[-1] == Stage("own", base="equal")
    assert compose(prelude("ask")).stages[-1] == Stage()
    assert [s.name for s in compose(prelude("ask", alone=Stage("own")), Method("fedavg")).stages] == ["ask", "train"]


def test_each_conversation_goes_where_it_is_best():
    two = Method("two", (Stage("a", 0), Stage("b", 0, after=("1", "elsewhere"))))
    assert [s.name for s in compose(frame(), two).stages] == ["a", "1", "b", "2"]
    assert [s.name for s in compose(Method("fedavg"), two).stages] == ["a", "b", "train"]
    assert [s.name for s in compose(frame(), replace(two, where=("2",))).stages] == ["1", "2", "a", "b"]


@pytest.mark.parametrize("method", ["fednoro+fedrn", "fedrn+fedcorr", "clipfl+dividemix", "clipfl+co-teaching"])
def test_a_part_in_a_frame_warms_up_once(method):
    """Its time runs through all stages that have it; a part of one stage has that stage's."""
    plan = Contract.of(method, {"rounds": 20}).plan(tiny_federation())
    single = {"fedrn": "ReliableNeighbours", "dividemix": "DivideMix", "co-teaching": "CoTeaching"}
    name = next(single[word] for word in method.split("+") if word in single)
    holding = [(i, stage) for i, stage in enumerate(plan.stages) if name in stage.names()]
    assert len(holding) > 1
    part, total, before = plan.part(holding[0][0], name), sum(stage.rounds for _, stage in holding), 0
    for i, stage in holding:
        assert plan.clock(part, i, 0) == (before, total)
        assert plan.clock(part, i, stage.rounds - 1) == (before + stage.rounds - 1, total)
        before += stage.rounds
    for i, stage in enumerate(plan.stages):
        for own in stage.parts:
            if sum(own.name in other.names() for other in plan.stages) == 1:
                assert plan.clock(own, i, 1) == (1, stage.rounds)


def test_a_part_of_training_at_the_server_counts_the_rounds_of_the_stage():
    plan = Contract.of("clipfl", {"rounds": 20}).plan(tiny_federation())
    assert [stage.rounds for stage in plan.stages] == [5, 15]
    assert [plan.clock(Prox(), stage, 3) for stage in (0, 1, -1)] == [(3, 5), (3, 15), (3, 15)]


def test_what_a_client_of_a_frame_is_told_of_the_time(monkeypatch):
    """FedRN in ClipFL: the first fifth of all rounds warms up, and no round of the second stage."""
    seen = []
    monkeypatch.setattr(
        "fedsieve.methods.fedrn.in_warmup",
        lambda t, rounds, warmup: seen.append((t, rounds)) or in_warmup(t, rounds, warmup),
    )
    with Contract.of("fedrn+clipfl", {"rounds": 8}).trial() as trial:
        trial.run()
    assert sorted(set(seen)) == [(t, 8) for t in range(8)]


def test_preludes_keep_the_written_order():
    assert [s.name for s in compose(prelude("a"), prelude("b"), Method("fedavg")).stages] == ["a", "b", "train"]
    after = [prelude(name, where=("1",)) for name in "ab"]
    assert [s.name for s in compose(*after, frame()).stages] == ["1", "a", "b", "2"]


def test_columns_may_be_written_in_an_earlier_stage():
    built(prelude("mark", Marking()), single("use", Needing()))
    with pytest.raises(CompositionError):
        built(Method("m", (Stage("1", rounds=1, parts=(Needing(),)), Stage("2", parts=(Marking(),)))))


def twin():
    """Another class by the name of a known part."""
    return type("Prox", (Learning,), {"__module__": "elsewhere"})()


def test_two_parts_of_one_name_are_refused():
    with pytest.raises(CompositionError, match="Prox"):
        built(single("a", Prox()), single("b", twin()))


def test_heads_are_united():
    one, two = Method("a", heads=(Projector(), PREDICTOR)), Method("b", heads=(PREDICTOR, SideHead(name="anchor")))
    assert compose(one, two).heads == (Projector(), PREDICTOR, SideHead(name="anchor"))


@pytest.mark.parametrize("pair", list(combinations(METHODS, 2)), ids="+".join)
def test_every_pair_of_methods_composes_or_says_why_not(pair):
    federation = tiny_federation()
    plans = []
    for name in ("+".join(pair), "+".join(reversed(pair))):
        try:
            plans.append(Contract.of(name, {}).plan(federation))
        except CompositionError as problem:
            plans.append(problem.message)
    one, two = plans
    if isinstance(one, str):
        assert one == two
        return
    assert one.method == two.method
    assert one.fit == two.fit
    for stage in one.stages:
        losses = sum(defines(part, "loss") for part in stage.parts)
        trains = stage.rounds and stage.sampler.trains()
        assert losses == 1 if trains else losses <= 1, "each stage whose clients train has exactly one loss"


@pytest.mark.parametrize(("one", "two"), [("moon+scaffold+gce", "gce+moon+scaffold"), ("fedprox+mae", "mae+fedprox")])
def test_the_order_of_names_does_not_change_a_bit(one, two):
    settings = {"model": "mlp", "model.hidden": [8]}
    with Contract.of(one, settings).trial() as a, Contract.of(two, settings).trial() as b:
        assert torch.equal(a.run().models[0][0], b.run().models[0][0])


@pytest.mark.parametrize("pretrain", [0, 1])
def test_nothing_joins_a_server_that_trains_alone(pretrain):
    """Neither its frame nor its single stage has clients."""
    with pytest.raises(CompositionError, match="server-sl") as problem:
        Contract.of("server-sl+fedprox", {"server-sl.pretrain": pretrain}).plan(tiny_federation())
    assert problem.value.code == "FS107"
    assert "fedprox" in problem.value.message


def test_two_losses_by_name_are_refused():
    with pytest.raises(CompositionError, match="FS103"):
        built(build_method("gce+mae", {}))


@pytest.mark.parametrize("method", ["fedavg", "fedprox"])
def test_local_norm_shares_no_norm_layer_and_tests_each_client(method):
    plan = Contract.of(method, {"norm": "local"}).plan(tiny_federation())
    norm = {e.name for e in plan.layout.select(("@norm",))}
    assert norm
    for names in (plan.share.down, plan.share.up):
        assert not norm & {entry.name for entry in plan.layout.select(names)}
    assert {entry.name for entry in plan.layout.select(plan.share.keep)} == norm
    assert plan.method.test == "clients"
    assert plan.sizes["M"] == plan.layout.size - plan.layout.count(("@norm",))


def test_local_norm_leaves_the_servers_norm_alone_and_keeps_each_clients():
    with Contract.of("fedavg", {"norm": "local"}).trial() as trial:
        state = trial.run()
        layout, plan = trial.plan.layout, trial.plan
        moved = (state.models[0][0] != plan.initial[0]).numpy()
        norm = np.zeros(layout.size, bool)
        for part in layout.slices(("@norm",)):
            norm[part] = True
        assert not moved[norm].any()
        assert moved[~norm].mean() > 0.9
        kept = [trial.states.load(k, state.versions[k])["net/0"] for k in range(4)]
        assert len(kept[0]) == norm.sum()
        assert not torch.equal(kept[0], kept[1])


def test_local_norm_changes_nothing_where_nothing_is_shared():
    assert Contract.of("local", {"norm": "local"}).plan(tiny_federation()).share == Share(down=(), up=(), keep=("*",))


@pytest.mark.parametrize("method", METHODS)
def test_what_secure_aggregation_admits_is_called_secure(method):
    try:
        plan = Contract.of(method, {"secure_aggregation": True}).plan(tiny_federation())
    except CompositionError as problem:
        plan = Contract.of(method, {}).plan(tiny_federation())
        refused = problem.code
    else:
        refused = ""
    assert refused == ("" if secure_aggregation(plan) else "FS117")
