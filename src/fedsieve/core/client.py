"""The context a client hook receives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor

from fedsieve.base.errors import RunError
from fedsieve.base.rng import Key, torch_rng
from fedsieve.core.layout import Names, unpack_
from fedsieve.core.net import Batch, Net, Out
from fedsieve.core.part import Part
from fedsieve.core.plan import Clock, Fit, Plan
from fedsieve.core.types import SERVER, Labels, Mail, Payload, Told
from fedsieve.data.samples import EVALUATION_BATCH, Samples
from fedsieve.models.heads import FEATURES


class Skipped(Exception):  # noqa: N818  # not an error: the client has nothing to train on
    """Raised by `Client.skip`."""


class Kept(MutableMapping[str, Tensor]):
    """What one part keeps at this client between rounds; only declared names can be written."""

    def __init__(self, state: dict[str, Tensor], prefix: str, part: Part) -> None:
        self._state, self._prefix, self._part = state, prefix, part

    def __getitem__(self, name: str) -> Tensor:
        return self._state[self._prefix + name]

    def __setitem__(self, name: str, value: Tensor) -> None:
        if name not in self._part.keeps:
            raise RunError("FS206", f"{self._part.name} keeps '{name}', but declares only {sorted(self._part.keeps)}")
        self._state[self._prefix + name] = value.detach().cpu()

    def __delitem__(self, name: str) -> None:
        del self._state[self._prefix + name]

    def __iter__(self) -> Iterator[str]:
        return (key.removeprefix(self._prefix) for key in self._state if key.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Client:
    """Read-only for hooks, except: the weights of `nets`, and the part's own `keep` and `scratch`."""

    def __init__(
        self,
        *,
        id: int,
        plan: Plan,
        fit: Fit,
        mail: Mail,
        nets: Sequence[Net],
        samples: Samples,
        labels: Labels,
        state: dict[str, Tensor],
        briefs: Mapping[str, Payload],
        lend: Callable[[], Net],
        served: Tensor | None = None,
        public: Samples | None = None,
        sections: Names | None = None,
        moment: tuple[int, int] | None = None,
    ) -> None:
        self.id = id
        self.plan = plan
        self.fit = fit
        self.sections = plan.share.train if sections is None else sections
        """Of the model, what is trained here."""
        self.key: tuple[Key, ...] = (*((mail.stage, mail.round) if moment is None else moment), id)
        """By what its random streams are told from all others."""
        self.stage, self.round, self.t, self.group = mail.stage, mail.round, mail.t, mail.group
        self.epoch = 0
        self.nets = nets
        self.samples = samples
        self.labels = labels
        """The lasting table; `net.labels` is this round's."""
        self.state = state
        self._served = served
        self._public = public
        self._briefs = briefs
        self._lend = lend
        self.guesses: dict[str, Tensor] = {}
        """What was guessed in this message: a class a row, -1 for none, and which of the guesses are trained on."""
        self._scratch: dict[str, dict[str, Any]] = {}
        self._views: dict[tuple[str, int], torch.Generator] = {}

    @property
    def n(self) -> int:
        return len(self.labels)

    @property
    def at_server(self) -> bool:
        """Whether this is the server itself, with its own data."""
        return self.id <= SERVER

    @property
    def n_classes(self) -> int:
        return self.plan.n_classes

    @property
    def rounds(self) -> int:
        """How long this stage is."""
        return self.plan.stages[self.stage].rounds or 0

    def clock(self, part: Part) -> Clock:
        """The part's own time: as `t` and `rounds`, but through all stages that have the part."""
        return self.plan.clock(part, self.stage, self.t)

    @property
    def public(self) -> Samples:
        """Unlabelled samples that server and clients all hold, for a part that reads them."""
        if self._public is None:
            raise RunError("FS206", "a part looks at the public data without declaring them in `reads`")
        return self._public

    @property
    def served(self) -> Tensor:
        """(n,) which labels are right, for a part that reads the truth."""
        if self._served is None:
            raise RunError("FS206", "a part looks at the truth without declaring it in `reads`")
        return self._served

    @property
    def lr(self) -> float:
        return self.fit.lr(self.round)

    def brief(self, part: Part) -> Told:
        """What the server told this part's client half."""
        return Told(self._briefs[part.name])

    def keep(self, part: Part, net: Net | None = None) -> Kept:
        """The part's own state at this client, or its state for one of several nets."""
        where = f"keep/{part.name}/" if net is None else f"keep/{part.name}/{net.index}/"
        return Kept(self.state, where, part)

    def scratch(self, part: Part) -> dict[str, Any]:
        """Lasts for one message."""
        return self._scratch.setdefault(part.name, {})

    def rng(self, part: Part, purpose: str, *more: Key) -> torch.Generator:
        """A stream of the part's own: drawing from it shifts nobody else's draws."""
        return self.stream(part.name, purpose, *more)

    def stream(self, *purpose: Key) -> torch.Generator:
        return torch_rng(self.plan.seed, *self.key, *purpose)

    def borrow(self, vector: Tensor) -> Net:
        """Another net with these weights, for evaluation only, until the message is answered."""
        net = self._lend()
        net.load(vector)
        net.module.eval()
        return net

    def complete(self, net: Net, sections: Tensor, way: Literal["down", "up"]) -> Tensor:
        """Sections that travel one way as a full vector; what does not travel is taken from what this net received."""
        slices = self.plan.down_slices if way == "down" else self.plan.up_slices
        return unpack_(net.received.clone(), slices, sections.to(net.device))

    def skip(self, reason: str) -> NoReturn:
        """Return no model this round."""
        raise Skipped(reason)

    def rewrite(self, labels: Labels) -> None:
        """Change the lasting table; `given` stays as delivered beside it."""
        self.labels = labels
        self.state |= {f"labels/{name}": getattr(labels, name) for name in ("target", "weight", "role", "score")}
        for net in self.nets:
            net.labels = labels

    def note_twins(self, twins: Tensor) -> None:
        """Note for each row another one here that is nearly the same and labelled otherwise, -1 for none.

        For the owner of the data alone, and nobody is sent it.
        """
        self.state["judged/twin"] = twins

    def guess(self, part: Part, rows: Tensor, classes: Tensor, used: Tensor) -> None:
        """Note which classes were guessed for these rows, and which of the guesses are trained on.

        For the record alone, and nobody is sent it. Of several guesses of a row the last one counts.
        """
        if not part.guesses:
            raise RunError("FS206", f"{part.name} notes guesses without declaring `guesses`")
        if not self.guesses:
            self.guesses = {"guessed": torch.full((self.n,), -1), "used": torch.zeros(self.n, dtype=torch.bool)}
        self.guesses["guessed"][rows] = classes.cpu()
        self.guesses["used"][rows] = used.cpu()

    def turns(self) -> Sequence[Sequence[Net]]:
        """Which nets share a batch: all together, or one after the other."""
        return [self.nets] if self.plan.method.turns == "together" else [[net] for net in self.nets]

    def batches(self, nets: Sequence[Net], smallest: int = 1) -> Iterator[Batch]:
        """Shuffled mini-batches of the rows to train on; the last one may be smaller, but not than `smallest`."""
        rows = nets[0].labels.training_rows()
        if not len(rows):
            self.skip("no sample to train on")
        if len(rows) < smallest:
            self.skip(f"{len(rows)} to train on, where a batch needs {smallest} samples")
        turn = nets[0].index
        order = torch.randperm(len(rows), generator=self.stream("order", turn, self.epoch))
        for chosen in split_rows(rows[order], self.fit.batch, smallest):
            yield self.batch(chosen, turn)

    def batch(self, rows: Tensor, turn: int) -> Batch:
        """Rows of one's own choice in a net's turn; views under names of their own (`train#2`) shift nobody's draws."""
        return Batch(rows, lambda r, view: self.samples.view(r, view, self._view_stream(view, turn)))

    @torch.no_grad()
    def outputs(
        self, net: Net, rows: Tensor | None = None, samples: Samples | None = None, head: str = FEATURES
    ) -> Out:
        """Logits and features of all samples (or some) in evaluation mode, without augmentation; its own, or others.

        Where a head is named, what it returns stands in place of the features.
        """
        samples = self.samples if samples is None else samples
        rows = torch.arange(len(samples)) if rows is None else rows
        with net.evaluating():
            outs = [net.out(Batch(some, samples.view), "clean", head) for some in torch.split(rows, EVALUATION_BATCH)]
        net.forget()
        return Out(torch.cat([out.logits for out in outs]), torch.cat([out.features for out in outs]))

    def logits(self, net: Net, rows: Tensor | None = None, samples: Samples | None = None) -> Tensor:
        """As `outputs`: the logits alone, in single precision and where the tables are."""
        return self.outputs(net, rows, samples).logits.float().cpu()

    def _view_stream(self, view: str, turn: int) -> torch.Generator | None:
        if view == "clean":
            return None
        if (view, turn) not in self._views:
            self._views[view, turn] = self.stream("view", view, turn)
        return self._views[view, turn]


def split_rows(rows: Tensor, size: int, smallest: int) -> list[Tensor]:
    """Rows in batches of `size`; a last one of fewer than `smallest` joins the one before it."""
    batches = list(torch.split(rows, max(size, smallest)))
    if len(batches) > 1 and len(batches[-1]) < smallest:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches
