"""The checks themselves. Each takes a contract and raises AssertionError when the method breaks its promise."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from fedsieve.base.errors import FedSieveError
from fedsieve.core.aggregate import Tally
from fedsieve.core.part import Method, Part, defines
from fedsieve.core.rounds import assess
from fedsieve.core.server import Server, ServerState
from fedsieve.evaluate.disclosure import disclosure
from fedsieve.runtime.serial import SerialRuntime
from fedsieve.testing.comparing import in_range, same_bytes, same_names, same_notes, same_payload, same_state
from fedsieve.testing.contract import Contract
from fedsieve.testing.parts import Corrected, client_halves, label_free
from fedsieve.testing.tiny import tiny_federation, without_labels
from fedsieve.testing.trial import Interruption, Trial
from fedsieve.testing.watching import guarding_models, probing, probing_edits


def check_method(name: str | Method, **settings: Any) -> None:
    """Every promise of the contract; settings as for `fedsieve.run`."""
    contract = Contract.of(name, settings)
    for check in CHECKS:
        try:
            check(contract)
        except AssertionError as problem:
            raise AssertionError(f"{contract.config.top.method}: {check.__name__}: {problem}") from problem


def a_round_changes_the_weights(contract: Contract) -> None:
    """Where the method trains, the global model or, if nothing travels, each client's own model changes."""
    trial, state, kept = contract.tried
    before = trial.plan.initial
    if trial.plan.up_slices:
        pairs = [pair for nets in state.models.values() for pair in zip(nets, before, strict=True)]
        moved = any(not torch.equal(now, then) for now, then in pairs)
    else:
        own = [one["net/0"] for one in kept.values() if "net/0" in one]
        moved = any(not torch.equal(net, before[0][trial.plan.keep_slices[0]]) for net in own)
    assert moved, "the model is what it was at the start"


def zero_epochs_return_the_weights(contract: Contract) -> None:
    def without_epochs(method: Method) -> Method:
        return replace(method, stages=tuple(replace(stage, epochs=0) for stage in method.stages))

    with contract.trial(edit=without_epochs, epochs=0) as trial:
        trial.run()
        for (client, down), up in zip(trial.record.downs, trial.record.ups, strict=True):
            if up.models is None or trial.plan.down_slices != trial.plan.up_slices:
                continue
            for sent, returned in zip(down.models, up.models, strict=True):
                assert torch.equal(sent, returned), f"client {client} changed the model without training"


def weights_sum_to_one(contract: Contract) -> None:
    """Per group and round, non-negative and with sum 1, wherever a model was reported."""
    for number, what in enumerate(contract.tried.trial.record.rounds):
        by_group: dict[int, list[float]] = {}
        for client, weight in what.weights.items():
            assert weight >= 0, f"round {number + 1}: client {client} has the weight {weight}"
            by_group.setdefault(what.ups[client].group, []).append(weight)
        for group, weights in by_group.items():
            assert abs(sum(weights) - 1) < 1e-9, f"round {number + 1}: group {group} sums to {sum(weights)}"


def client_order_does_not_matter(contract: Contract) -> None:
    """The server learns the same from the same reports, whatever their order."""
    reports = {up.client: up for up in contract.tried.trial.record.ups if up.round == 0}
    with contract.trial() as again:
        stage = next((i for i, stage in enumerate(again.plan.stages) if stage.rounds), None)
        if stage is None or not reports:
            return
        results = []
        for order in (sorted(reports), sorted(reports, reverse=True)):
            state = ServerState.fresh(again.plan)
            state.stage = stage
            server = Server(state, again.plan, lambda: again.host)
            server.prepare()
            h = again.plan.hooks[stage]
            tally = Tally(again.plan, again.plan.stages[stage], h)
            for client in order:
                tally.add(replace(reports[client], group=0))
            assess(SerialRuntime(again.host), h, server, {0: tally})
            weights = tally.settle(server)
            for part in h.learn:
                part.learn(server.by(part), tally.ups, weights)
            results.append((state, weights))
        (one, w1), (two, w2) = results
        assert all(abs(w1[k] - w2[k]) < 1e-9 for k in w1), "the weights depend on the order of the reports"
        for a, b in zip(one.models[0], two.models[0], strict=True):
            assert torch.allclose(a, b, atol=1e-6), "the model depends on the order of the reports"
        for key, memory in one.memory.items():
            for name, tensor in memory.items():
                same = torch.allclose(tensor.float(), two.memory[key][name].float(), atol=1e-5)
                assert same, f"{key[0]}.{name} depends on the order of the reports"


def auxiliary_losses_have_a_gradient(contract: Contract) -> None:
    """Each loss and term reaches the network's parameters, and each edit of the gradient changes it, in some batch."""
    with contract.trial(rounds=3) as trial:
        reached: dict[str, float] = {}
        parts = {part.name: part for stage in trial.plan.stages for part in stage.parts}
        with ExitStack() as patches:
            for part in parts.values():
                for hook in ("loss", "term"):
                    if defines(part, hook):
                        reached[f"{part.name}.{hook}"] = 0.0
                        patches.enter_context(patch.object(type(part), hook, probing(part, hook, reached)))
                if defines(part, "gradient"):
                    reached[f"{part.name}.gradient"] = 0.0
                    patches.enter_context(patch.object(type(part), "gradient", probing_edits(part, reached)))
            trial.run()
        for name, size in reached.items():
            assert size > 0, f"{name} has no gradient with respect to the network"


def server_models_are_replaced(contract: Contract) -> None:
    """No server hook changes a model in place: snapshots and other groups hold the very same tensors."""
    with contract.trial() as trial, ExitStack() as patches:
        for part in {part.name: part for stage in trial.plan.stages for part in stage.parts}.values():
            for hook in ("round", "step", "learn"):
                if defines(part, hook):
                    patches.enter_context(patch.object(type(part), hook, guarding_models(part, hook)))
        trial.run()


def declared_payloads_are_real(contract: Contract) -> None:
    """What travels has exactly the declared names, shapes and ranges, and the bytes that the disclosure states."""
    trial, state, _ = contract.tried
    plan, record = trial.plan, trial.record
    sizes = plan.sizes | {"G": len(state.models)}
    stated: dict[tuple[str, ...], int | None] = {
        (r["stage"], r["part"], r["direction"], r["name"]): r["bytes"] for r in disclosure(plan)
    }
    rows = {k: len(given) for k, given in enumerate(trial.federation.given)}
    for client, down in record.downs:
        stage = plan.stages[down.mail.stage]
        same_names(down.briefs, {part.name for part in stage.parts if defines(part, "brief")}, "briefs")
        for part in stage.parts:
            if part.name in down.briefs:
                same_payload(down.briefs[part.name], part.down, part, sizes | {"n": rows[client]})
                same_bytes(down.briefs[part.name], part.down, stated, (stage.name, part.name, "down"))
    for (_, down), up in zip(record.downs, record.ups, strict=True):
        stage = plan.stages[down.mail.stage]
        if up.models is not None:
            same_names(up.notes, {part.name for part in stage.parts if defines(part, "finish")}, "notes")
        for part in stage.parts:
            if part.name in up.notes:
                same_payload(up.notes[part.name], part.sends(), part, sizes | {"n": rows[up.client]})
                same_bytes(up.notes[part.name], part.up, stated, (stage.name, part.name, "up"))
                in_range(up.notes[part.name], part.sends(), part)
    for (client, question), answer in zip(record.questions, record.answers, strict=True):
        part = plan.part(question.mail.stage, question.part)
        topic, known = part.topics[question.topic], sizes | {"n": rows[client]}
        same_payload(question.payload, topic.question, part, known)
        same_payload(answer.payload, topic.answer, part, known)
        in_range(answer.payload, topic.answer, part)


def degenerate_clients_are_survived(contract: Contract) -> None:
    """Empty, one sample, one class, all labels wrong, constant images, a last batch of one: no run ends untyped."""
    with contract.trial(tiny_federation(25, degenerate=True)) as trial:
        try:
            state = trial.run()
        except FedSieveError as problem:
            if problem.code == "FS210":
                raise AssertionError(f"a client half crashed: {problem}") from problem
            return
        for nets in state.models.values():
            assert all(bool(torch.isfinite(net).all()) for net in nets), "the model holds NaN or infinity"


def two_runs_are_equal(contract: Contract) -> None:
    with contract.trial() as again:
        same_state(contract.tried.state, again.run(), "two runs with one seed differ")


def interrupted_and_resumed_is_equal(contract: Contract) -> None:
    """Cut off after each message of the first round and a few later ones, then resumed: the same bytes."""
    whole, state, _ = contract.tried
    messages = whole.record.messages
    for cut in sorted({*range(min(messages, 3)), messages // 2, max(messages - 1, 0)}):
        with contract.trial() as trial:
            try:
                trial.run(fail_after=cut)
            except Interruption:
                fresh = Trial(trial.plan, trial.federation, trial.folder)
                same_state(state, fresh.run(), f"cut off after {cut} messages and resumed, the result differs")


def a_correction_is_followed(contract: Contract) -> None:
    """Labels that were corrected before the method begins are what it trains on, as if they had been given."""
    states = []
    for ahead in (0, 1):
        federation = tiny_federation()
        given = tuple((labels + ahead) % len(federation.class_names) for labels in federation.given)
        first = Corrected(shift=1 - ahead)

        def corrected(method: Method, first: Part = first) -> Method:
            stage = replace(method.stages[0], name="corrected", rounds=0, laps=None, fraction=None, parts=(first,))
            return replace(method, stages=(stage, *method.stages))

        with contract.trial(replace(federation, given=given), edit=corrected) as trial:
            states.append(trial.run())
    same_state(states[0], states[1], "what a correction wrote before training is not all that is trained on")


def labels_are_read_as_declared(contract: Contract) -> None:
    """Client halves that declare to read no labels do, send and keep the same where clients have none.

    Where a method has others beside them, they are tried without these; what cannot run so is left out.
    """
    with contract.trial(edit=label_free) as seeing, contract.trial(edit=label_free) as other:
        names = client_halves(seeing.plan.method)
        if not names:
            return
        message = f"without the clients' labels, which none of {', '.join(names)} declares to read, the result differs"
        try:
            state = seeing.run()
        except FedSieveError:
            return
        blind = Trial(other.plan, without_labels(other.federation), other.folder)
        try:
            same_state(state, blind.run(), message)
        except FedSieveError as problem:
            raise AssertionError(f"{message} ({problem})") from problem
        for mine, theirs in zip(seeing.record.ups, blind.record.ups, strict=True):
            same_notes(mine.notes, theirs.notes, message)
        for said, other_said in zip(seeing.record.answers, blind.record.answers, strict=True):
            same_notes({said.client: said.payload}, {other_said.client: other_said.payload}, message)
        for client, version in state.versions.items():
            kept = [trial.states.load(client, version) for trial in (seeing, blind)]
            own = [{n: v for n, v in one.items() if n.startswith(("keep/", "net/"))} for one in kept]
            same_notes({client: own[0]}, {client: own[1]}, message)


CHECKS = (
    a_round_changes_the_weights,
    zero_epochs_return_the_weights,
    weights_sum_to_one,
    client_order_does_not_matter,
    auxiliary_losses_have_a_gradient,
    server_models_are_replaced,
    declared_payloads_are_real,
    degenerate_clients_are_survived,
    two_runs_are_equal,
    interrupted_and_resumed_is_equal,
    a_correction_is_followed,
    labels_are_read_as_declared,
)
