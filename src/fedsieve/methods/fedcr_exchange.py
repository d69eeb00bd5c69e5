"""What travels in FedCR, and what clients start from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from fedsieve.base.options import Choice
from fedsieve.core import ALL, Batch, Client, Head, Names, Net, Nobody, Part, Payload, Server, Share, Stage
from fedsieve.methods.fedcr_regulariser import ContrastiveLoss, PairContrast
from fedsieve.parts.previous import OwnShare
from fedsieve.parts.published import vary
from fedsieve.parts.server_labels import ServerLabels
from fedsieve.parts.two_views import PREDICTOR, PROJECTOR, Perceptron, still

WITHOUT_CLASSIFIER: Names = ("*", "-head")


@dataclass(frozen=True, kw_only=True)
class PretrainedClassifier(Part):
    """Clients look through the classifier as pre-training left it, whatever the server learns later."""

    down = {"weight": ("C", "d"), "bias": ("C",)}
    remembers = down
    sees = "sum"

    def recall(self, s: Server) -> dict[str, Tensor]:
        named = s.plan.layout.named(s.models[0])
        return {name: named[f"head.{name}"] for name in self.down}

    def brief(self, s: Server, client: int) -> Payload:
        return dict(s.memory)

    def start(self, c: Client) -> None:
        for entry in c.plan.layout.select(("head",)):
            entry.view(c.nets[0].vector).copy_(c.brief(self).tensor(entry.name.removeprefix("head.")))


@dataclass(frozen=True, kw_only=True)
class OnlineLabels(ServerLabels):
    """The loss on the server's labels where a second net is the target, which learns nothing."""

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        return still(net) if net.index else super().loss(c, net, batch)


@dataclass(frozen=True, kw_only=True)
class Exchange(Choice):
    """What travels between server and clients besides the online net, and what clients start from."""

    exchange: Literal["online", "whole", "fedema"] = "online"
    """The online net alone, from which a client's target begins; the target too, both averaged; or the online net,
    which a client mixes with its own last one by FedEMA's rule, keeping its target (Table 7)."""
    classifier: Literal["round", "init", "none"] = "round"
    """Whose guesses make the mask at clients: the server's classifier of this round, the one that pre-training left, or
    nobody's, so that only views of the same image are drawn together."""
    classifier_on: Literal["projector", "backbone"] = "projector"
    """What the classifier stands on."""

    @property
    def nets(self) -> int:
        return 2 if self.exchange == "whole" else 1

    def share(self) -> Share:
        """The classifier is the server's: it goes down to be looked through, and is neither trained nor sent back."""
        down = ALL if self.classifier == "round" else WITHOUT_CLASSIFIER
        return Share(down=down, up=WITHOUT_CLASSIFIER, train=WITHOUT_CLASSIFIER)

    def clients(self, contrast: PairContrast, own: OwnShare) -> Stage:
        """Rounds of the clients; without a weight of the contrast they have nothing to learn."""
        if not contrast.weight:
            return Stage(sampler=Nobody())
        eta = 2.0 if self.classifier == "none" else contrast.eta  # no two guesses have such a product
        kept: Literal["own", "received"] = "own" if self.exchange == "fedema" else "received"
        loss = vary(replace(contrast, eta=eta, target_from=kept), ContrastiveLoss)
        mixed = (own,) if self.exchange == "fedema" else ()
        frozen = (PretrainedClassifier(),) if self.classifier == "init" else ()
        return Stage(parts=(*mixed, *frozen, loss))

    def server_loss(self, loss: ServerLabels) -> ServerLabels:
        return vary(loss, OnlineLabels) if self.exchange == "whole" else loss

    def heads(self, projector: Perceptron, predictor: Perceptron) -> tuple[Head, Head]:
        first = projector.in_line() if self.classifier_on == "projector" else projector.head(PROJECTOR)
        return first, predictor.head(PREDICTOR, base=PROJECTOR)
