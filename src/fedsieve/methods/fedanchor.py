"""FedAnchor: the server's labelled samples are anchors, and clients guess by which of them their own lie near.

After Qiu et al., arXiv 2402.10191, 2024.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from fedsieve.base.options import settled
from fedsieve.core import Batch, Client, Method, Net, Part, Payload, Reads, Server, Share, Stage
from fedsieve.parts.centroids import class_means, has_centroid
from fedsieve.parts.guesses import GuessOnce, is_sure
from fedsieve.parts.server_fit import ServerFit
from fedsieve.parts.server_labels import TAUGHT, Pretraining, ServerLabels
from fedsieve.parts.two_views import Perceptron

ANCHOR = "anchor"


def label_contrast(z: Tensor, labels: Tensor, tau: float, per: Literal["class", "sample"]) -> Tensor:
    """−log [Σ_{same class} e^{s_ij/τ} / Σ e^{s_ij/τ}], s_ij the cosine of two different rows.

    For each class with all pairs of the batch in the denominator, or for each sample with its own pairs; then the mean.
    A class of one row has no pair and is passed over. Where there is no pair at all it is zero.
    """
    unit = normalize(z.float(), dim=1)
    apart = ~torch.eye(len(z), dtype=torch.bool, device=z.device)
    likeness = (unit @ unit.T / tau).masked_fill(~apart, -torch.inf)
    paired = apart & (labels[:, None] == labels)
    members = paired.any(1)
    if not members.any():
        return unit.sum() * 0.0
    if per == "sample":
        positive = likeness.masked_fill(~paired, -torch.inf)[members].logsumexp(1)
        return (likeness[members].logsumexp(1) - positive).mean()
    within = [likeness[paired & (labels == each)].logsumexp(0) for each in sorted(set(labels[members].tolist()))]
    return likeness[apart].logsumexp(0) - torch.stack(within).mean()


def prototypes(latents: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """(C, d) for each class the mean of its anchors' latents, each brought to length one; zeros where it has none."""
    return class_means(normalize(latents.float(), dim=1), labels, n_classes)


def mean_cosines(latents: Tensor, means: Tensor) -> Tensor:
    """(n, C) the mean cosine of a row with a class's anchors, which is the product with their mean; −∞ without any."""
    return (normalize(latents.float(), dim=1) @ means.T).masked_fill(~has_centroid(means), -torch.inf)


@dataclass(frozen=True, kw_only=True)
class LabelContrast(Part):
    """At the server: anchors of one class are drawn together, those of different ones apart."""

    tau: Annotated[float, Field(gt=0)] = 0.1
    """τ, temperature of the contrast and of how sure a guess is."""
    weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the contrast beside the server's loss."""
    per: Literal["class", "sample"] = "class"
    """Whether each class is compared with all pairs of a batch, or each sample with its own."""
    view: str = settled("weak")
    """The view that the server's loss looks at."""
    labels = True
    heads = (ANCHOR,)

    def term(self, c: Client, net: Net, batch: Batch) -> Tensor:
        labels = net.target(batch).argmax(1)
        return self.weight * label_contrast(net.head(ANCHOR, batch, self.view), labels, self.tau, self.per)


@dataclass(frozen=True, kw_only=True)
class GuessByAnchors(GuessOnce):
    """A sample's label is the class whose anchors it is most alike on average, as the received model sees both."""

    threshold: Annotated[float, Field(ge=0)] = 0.0
    """Probability from which on a guess is trained on, of softmax(mean cosines / τ); 0 keeps all."""
    tau: float = settled(0.1)
    """As in the contrast."""
    on: Literal["clean", "noisy", "unlabelled", "public"] = settled("noisy")
    """The server's set that holds the anchors: the one it trains on."""
    down = {"prototypes": ("C", ANCHOR)}
    remembers = {"prototypes": ("C", ANCHOR)}
    heads = (ANCHOR,)
    nets = 1
    sees = "sum"

    def data(self) -> Reads:
        return Reads[self.on.upper()]

    # --- server half
    def round(self, s: Server) -> None:
        anchors = s.clean if self.on == "clean" else s.noisy
        latents = s.predict(s.models, anchors.samples, ANCHOR).features
        s.memory["prototypes"] = prototypes(latents, anchors.labels, s.plan.n_classes)

    def brief(self, s: Server, client: int) -> Payload:
        return {"prototypes": s.memory["prototypes"]}

    # --- client half
    def judged(self, c: Client, net: Net) -> tuple[Tensor, Tensor]:
        alike = mean_cosines(self.seen(c, net, ANCHOR), c.brief(self).tensor("prototypes"))
        return alike.argmax(1), is_sure(alike / self.tau, self.threshold)


def fedanchor(
    guess: GuessByAnchors,
    contrast: LabelContrast,
    loss: ServerLabels,
    pretraining: Pretraining,
    anchor: Perceptron = Perceptron(width=128),
    server: ServerFit = TAUGHT,
) -> Method:
    """The server trains classifier and anchor head; clients train the rest of the model by what their anchors say."""
    fit = replace(server, parts=(loss, replace(contrast, view=loss.view)))
    together = Stage(parts=(replace(guess, tau=contrast.tau, on=server.on),))
    theirs = ("*", f"-{ANCHOR}")
    return Method(
        "fedanchor",
        pretraining.stages(fit, together),
        heads=(anchor.head(ANCHOR),),
        share=Share(up=theirs, train=theirs),
    )
