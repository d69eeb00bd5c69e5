"""The client side of every runtime: takes one message, does the client's half, returns the reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from fedsieve.core.client import Client, Skipped
from fedsieve.core.client_states import ClientStates
from fedsieve.core.layout import Names, pack, unpack_
from fedsieve.core.local_training import local_training, open_sections
from fedsieve.core.net import Batch, Net, Out, joined
from fedsieve.core.part import Hooks, Part
from fedsieve.core.plan import Fit, Plan, check_declared
from fedsieve.core.types import SERVER, Answer, Down, Labels, Mail, Payload, Question, Reads, Role, Told, Up
from fedsieve.data.federation import Federation
from fedsieve.data.samples import EVALUATION_BATCH, Preprocess, Samples
from fedsieve.models.heads import FEATURES

GUESSES = ("judged/guessed", "judged/used")
"""Of one message only: what an earlier one guessed says nothing of it."""


class Host:
    """Serves any client of a federation, one message at a time."""

    def __init__(self, plan: Plan, federation: Federation, states: ClientStates) -> None:
        self.plan = plan
        self.federation = federation
        self.states = states
        self.preprocess = Preprocess(federation.mean, federation.std, plan.fit.augment, plan.device)
        self._images = torch.from_numpy(federation.images)
        self._test = torch.from_numpy(federation.test_images)
        self._nets = [Net(plan.build(index), index, plan.device) for index in range(plan.nets)]
        open_sections(self._nets, plan.share.train)
        self._serves_truth = any(part.data() & Reads.TRUTH for stage in plan.stages for part in stage.parts)
        self._spare: list[Net] = []
        self._lent: list[Net] = []
        public = federation.server.get("public")
        self._public = self._samples(torch.from_numpy(public.rows)) if public else None

    def train(self, client: int, down: Down) -> Up:
        """`start` to `finish`: a round is one message."""
        c = self.client(client, down.mail, down.models, down.briefs)
        if down.epochs < c.fit.epochs:  # never more than both sides agreed on
            c.fit = _with_epochs(c.fit, down.epochs)
        notes: dict[str, Payload] = {}
        models, loss, skipped = None, 0.0, ""
        try:
            if c.n == 0:
                c.skip("the client has no samples")
            notes, loss = local_training(c, self.plan.hooks[down.mail.stage])
            models = tuple(pack(net.vector, self.plan.up_slices).cpu() for net in c.nets)
        except Skipped as reason:
            skipped = str(reason)
        version = self._store(c, down.mail, trained=True)
        return Up(client, down.mail.round, c.n, c.group, models, notes, version, loss, skipped)

    def answer(self, client: int, question: Question) -> Answer:
        """One answer of a conversation."""
        part = self.plan.part(question.mail.stage, question.part)
        c = self.client(client, question.mail, question.models or (), {})
        declared = part.topics[question.topic].answer
        reply = check_declared(part.answer(c, question.topic, Told(question.payload)), declared, part, "answer")
        return Answer(client, reply, self._store(c, question.mail))

    def test_client(self, client: int, mail: Mail, models: tuple[Tensor, ...], rows: Tensor) -> Tensor:
        """Predicted classes of some test rows by this client's own nets."""
        c = self.client(client, mail, models, {})
        return self._predict(list(c.nets), self._test[rows])

    def predict(self, models: tuple[Tensor, ...], which: str, rows: Tensor) -> Tensor:
        """Predicted classes of some rows of the test or validation set by full models."""
        predicted = self._predict(self._load(models), self._stored(which, rows))
        self._return_nets()
        return predicted

    def features(self, models: tuple[Tensor, ...], which: str, rows: Tensor) -> Tensor:
        """The first model's features of some rows of the test, validation or training set."""
        return self.inspect(models, which, rows).features

    def inspect(self, models: tuple[Tensor, ...], which: str, rows: Tensor) -> Out:
        """The same with its logits."""
        found = self._inspect(self._load(models[:1])[0], self._stored(which, rows))
        self._return_nets()
        return found

    def inspect_client(self, client: int, mail: Mail, models: tuple[Tensor, ...], rows: Tensor) -> Out:
        """Logits and features of some rows of the training set by this client's own first net."""
        net = self.client(client, mail, models, {}).nets[0]
        net.module.eval()
        return self._inspect(net, self._images[rows])

    @torch.no_grad()
    def _inspect(self, net: Net, stored: Tensor) -> Out:
        outs = [net.out(self._ready(some), "clean") for some in torch.split(stored, EVALUATION_BATCH)]
        net.forget()
        return joined([Out(out.logits.float().cpu(), out.features.float().cpu()) for out in outs])

    def _stored(self, which: str, rows: Tensor) -> Tensor:
        """Samples for the evaluator; rows of training are those of all samples."""
        if which == "test":
            return self._test[rows]
        return self._images[torch.from_numpy(self.federation.validation)[rows] if which == "validation" else rows]

    def _ready(self, stored: Tensor) -> Batch:
        return Batch(torch.arange(len(stored)), lambda _, view: self.preprocess(stored, view, None))

    def holding(self, name: str) -> tuple[Samples, Tensor | None]:
        """The server's own samples of a kind, for the server's half of a part."""
        held = self.federation.server[name]
        labels = None if held.labels is None else torch.from_numpy(held.labels)
        return self._samples(torch.from_numpy(held.rows)), labels

    @torch.no_grad()
    def outputs(self, models: tuple[Tensor, ...], samples: Samples, head: str = FEATURES) -> Out:
        """Mean logits of full models, and net 0's features or a head's, for all samples, in evaluation mode."""
        nets = self._load(models)
        outs = []
        for rows in torch.split(torch.arange(len(samples)), EVALUATION_BATCH):
            batch = Batch(rows, samples.view)
            each = [net.out(batch, "clean", head) for net in nets]
            outs.append(Out(torch.stack([out.logits.float() for out in each]).mean(0), each[0].features.float()))
        self._return_nets()
        found = joined(outs)
        return Out(found.logits.cpu(), found.features.cpu())

    def assess(self, models: tuple[Tensor, ...], name: str) -> Tensor:
        """The logits of full models on one kind of the server's own data."""
        return self.outputs(models, self.holding(name)[0]).logits

    def respond(self, model: Tensor, x: Tensor) -> Tensor:
        """A full model's logits of one ready-made input."""
        (net,) = self._load((model,))
        logits = net.respond(x)
        self._return_nets()
        return logits

    def train_server(
        self,
        id: int,
        models: tuple[Tensor, ...],
        parts: Sequence[Part],
        fit: Fit,
        holding: str,
        train: Names,
        mail: Mail,
        epochs: int,
    ) -> tuple[tuple[Tensor, ...], int]:
        """Local training on the server's own data. Returns the new models and the version of the server's own state.

        Its streams are keyed by the epochs done at the server before, whatever the stage and the round.
        """
        samples, given = self.holding(holding)
        given = torch.full((len(samples),), -1) if given is None else given
        labels = Labels.of(given, self.plan.n_classes)
        for net, model in zip(self._nets, models, strict=True):
            net.load(model)
            net.labels = labels
        c = Client(
            id=id,
            plan=self.plan,
            fit=fit,
            mail=mail,
            nets=self._nets,
            samples=samples,
            labels=labels,
            state=self.states.load(id, mail.version),
            briefs={},
            lend=self._lend,
            public=self._public,
            sections=train,
            moment=(SERVER, epochs),
        )
        open_sections(self._nets, train)
        with suppress(Skipped):
            local_training(c, Hooks(parts))
        open_sections(self._nets, self.plan.share.train)
        self._return_nets()
        version = self.states.save(id, mail.saves, c.state, {*mail.retain, mail.version})
        return tuple(net.vector.cpu().clone() for net in self._nets), version

    def _load(self, models: tuple[Tensor, ...]) -> list[Net]:
        nets = []
        for model in models:
            nets.append(self._lend())
            nets[-1].load(model)
            nets[-1].module.eval()
        return nets

    @torch.no_grad()
    def _predict(self, nets: list[Net], stored: Tensor) -> Tensor:
        predicted = []
        for net in nets:
            net.module.eval()
        for some in torch.split(stored, EVALUATION_BATCH):
            batch = self._ready(some)
            logits = torch.stack([net.logits(batch, "clean").float() for net in nets]).mean(0)
            predicted.append(logits.argmax(1).to(torch.int32).cpu())
        for net in nets:
            net.forget()
        return torch.cat(predicted) if predicted else torch.empty(0, dtype=torch.int32)

    def client(self, client: int, mail: Mail, models: tuple[Tensor, ...], briefs: Mapping[str, Payload]) -> Client:
        """The client as it was after its last message, with the server's model in place of the shared sections.

        The server, where it takes part, starts from its own model whole.
        """
        self._return_nets()
        state = self.states.load(client, mail.version)
        for index, net in enumerate(self._nets):
            vector = (self.plan.initial if client > SERVER else models)[index].clone()
            if f"net/{index}" in state:
                unpack_(vector, self.plan.keep_slices, state[f"net/{index}"])
            if models and client > SERVER:
                unpack_(vector, self.plan.down_slices, models[index])
            net.load(vector)
        samples, given = self._owned(client, mail)
        labels = Labels.of(given, self.plan.n_classes)
        if "labels/target" in state:
            labels = labels.replace(**{name: state[f"labels/{name}"] for name in ("target", "weight", "role", "score")})
        for net in self._nets:
            net.labels = labels
        served = None
        if self._serves_truth and self.federation.served is not None and client > SERVER:
            served = torch.from_numpy(self.federation.served[client])
        stage = self.plan.stages[mail.stage]
        return Client(
            id=client,
            plan=self.plan,
            fit=self.plan.fit if stage.epochs is None else _with_epochs(self.plan.fit, stage.epochs),
            mail=mail,
            nets=self._nets,
            samples=samples,
            labels=labels,
            state=state,
            briefs=briefs,
            lend=self._lend,
            served=served,
            public=self._public,
        )

    def _owned(self, client: int, mail: Mail) -> tuple[Samples, Tensor]:
        """The samples of a client, or of the server where it takes part, and their labels."""
        if client > SERVER:
            rows, given = self.federation.rows[client], self.federation.given[client]
            return self._samples(torch.from_numpy(rows)), torch.from_numpy(given)
        sampler = self.plan.stages[mail.stage].sampler
        assert sampler is not None
        samples, labels = self.holding(sampler.holding())
        assert labels is not None
        return samples, labels

    def _store(self, c: Client, mail: Mail, *, trained: bool = False) -> int:
        """The client's new state: what parts keep, sections that stay, and how its labels were judged."""
        if self.plan.hooks[mail.stage].relabel or c.nets[0].labels.is_judged():
            c.state |= _judged(c.nets[0].labels)
            if trained and self.plan.method.test != "probe":
                c.state |= _opinions(c)
        c.state = {name: value for name, value in c.state.items() if name not in GUESSES}
        c.state |= {f"judged/{name}": value for name, value in c.guesses.items()}
        if self.plan.keep_slices:
            for net in c.nets:
                c.state[f"net/{net.index}"] = pack(net.vector, self.plan.keep_slices).cpu()
        return self.states.save(c.id, mail.saves, c.state, {*mail.retain, mail.version})

    def _samples(self, rows: Tensor) -> Samples:
        return Samples(self._images, rows, self.preprocess)

    def _lend(self) -> Net:
        net = self._spare.pop() if self._spare else Net(self.plan.build(0), len(self._lent), self.plan.device)
        self._lent.append(net)
        return net

    def _return_nets(self) -> None:
        for net in self._lent:
            net.forget()
        self._spare += self._lent
        self._lent = []


def _with_epochs(fit: Fit, epochs: int) -> Fit:
    return replace(fit, epochs=epochs)


def _judged(labels: Labels) -> dict[str, Tensor]:
    """What this round's table says of each label, for the owner of the data; it stays with the client."""
    suggested = labels.target.argmax(1)
    kept = (labels.weight > 0) & (labels.role == Role.LABELLED) & (suggested == labels.given)
    return {"judged/score": labels.score.clone(), "judged/suggested": suggested, "judged/kept": kept}


def _opinions(c: Client) -> dict[str, Tensor]:
    """What the client's net takes rows for that a method took out without a word on their class; -1 elsewhere.

    One pass over these rows. It is for the owner of the data alone, and no method learns of it.
    """
    kept, suggested = c.state["judged/kept"], c.state["judged/suggested"]
    rows = (~kept & (suggested == c.labels.given)).nonzero().flatten()
    opinion = torch.full((c.n,), -1)
    if len(rows):
        opinion[rows] = c.logits(c.nets[0], rows).argmax(1)
    return {"judged/opinion": opinion}
