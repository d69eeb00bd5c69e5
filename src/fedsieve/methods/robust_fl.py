"""Robust FL: clients share class centroids, and trust labels that lie close to them (Yang et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import one_hot

from fedsieve.core import (
    Batch,
    Client,
    Labels,
    Method,
    Net,
    Part,
    Payload,
    Ramp,
    Sent,
    Server,
    Stage,
    Ups,
    Weights,
    flags,
)
from fedsieve.parts.centroids import Reduce, class_means, follow, has_centroid, margin, merge, pull, similarities
from fedsieve.parts.few_rows import enough
from fedsieve.parts.losses import cross_entropy, entropy
from fedsieve.parts.selection import in_warmup, rows_kept, smallest, warmup_rounds


@dataclass(frozen=True, kw_only=True)
class SharedCentroids(Part):
    """Class centroids go round with the model; a label whose centroid is the nearest is trusted, others are guessed.

    Where the source is silent: pseudo labels and first centroids are taken in evaluation mode without augmentation; a
    class that the server does not know starts, at each client, from the client's own mean; the batch's means are by
    label; a client without any label takes no part.
    """

    lambda_cen: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the pull to the centroids, once it is fully there."""
    lambda_ent: Annotated[float, Field(ge=0)] = 0.8
    """Weight of the predictions' entropy."""
    forget_rate: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Share of each batch, the largest losses, that is left out in the end."""
    ramp: Annotated[int, Field(ge=0)] = 10
    """Rounds over which that share rises from 0."""
    correct_after: Annotated[int, Field(ge=0)] | None = None
    """Rounds before labels are corrected, and over which the pull rises from 0; a fifth of the rounds if not given."""
    reduce: Reduce = "features"
    """The pull is the mean over the trusted rows of a batch, (as in the code known to us) their sum, or the mean over
    rows and features, so that its strength does not grow with the width of the model."""

    corrects = True
    down = {"centroids": ("C", "d")}
    up = {"centroids": Sent(("C", "d"), paced=True), "seen": flags("C")}
    remembers = {"centroids": ("C", "d")}
    labels = True
    combined = True
    nets = 1

    # --- server half
    def recall(self, s: Server) -> dict[str, Tensor]:
        return {"centroids": torch.zeros(s.plan.n_classes, s.plan.sizes["d"])}

    def brief(self, s: Server, client: int) -> Payload:
        return {"centroids": s.memory["centroids"]}

    def learn(self, s: Server, ups: Ups, w: Weights) -> None:
        notes = s.notes(ups)
        if notes:
            reported, seen = (
                torch.stack([notes[k].tensor(name) for k in sorted(notes)]).double() for name in ("centroids", "seen")
            )
            s.memory["centroids"] = merge(s.memory["centroids"].double(), reported, seen).float()

    # --- client half
    def start(self, c: Client) -> None:
        """Pseudo labels by the received model, and the centroids to begin with."""
        labelled, label = c.labels.given >= 0, c.labels.target.argmax(1)
        out = c.outputs(c.nets[0])
        features = out.features.float()
        received = c.brief(self).tensor("centroids").to(features.device)
        own = class_means(features[labelled], label[labelled].to(features.device), c.n_classes)
        centroids = torch.where(has_centroid(received)[:, None], received, own)
        seen = torch.zeros(c.n_classes, dtype=torch.bool)
        similarity = similarities(features, centroids).cpu()
        note = c.scratch(self)
        note.update(label=label, centroids=centroids, seen=seen, pseudo=out.logits.argmax(1), similarity=similarity)

    def relabel(self, c: Client, net: Net, labels: Labels) -> Labels:
        """What the owner is told: the received model's verdict. While training, each batch is judged anew."""
        if self.accepts(c):
            return labels
        note, given = c.scratch(self), labels.given
        score = torch.where(given >= 0, margin(note["similarity"], given.clamp_min(0)), torch.nan)
        doubtful = note["similarity"].argmax(1) != note["label"]
        guessed = one_hot(note["pseudo"].cpu(), c.n_classes).to(labels.target)
        return labels.replace(score=score, target=torch.where(doubtful[:, None], guessed, labels.target))

    def loss(self, c: Client, net: Net, batch: Batch) -> Tensor:
        """CE + λ_cen(t) pull + λ_ent entropy over the rows of small loss."""
        note = c.scratch(self)
        out, label = net.out(batch), note["label"][batch.rows].to(net.device)
        losses = cross_entropy(out.logits.detach(), one_hot(label, c.n_classes))
        forget = Ramp(0.0, self.forget_rate, self.ramp)(c.clock(self).t)
        kept = smallest(losses, rows_kept(len(batch), forget))
        logits, features, label = out.logits[kept], out.features[kept], label[kept]
        trusted = similarities(features.detach(), note["centroids"]).argmax(1) == label
        pseudo = note["pseudo"][batch.rows.to(net.device)[kept]]
        taught = label if self.accepts(c) else torch.where(trusted, label, pseudo)
        note["batch"] = (features.detach().float(), label)
        supervised = cross_entropy(logits, one_hot(taught, c.n_classes)).mean()
        pulled = pull(features, note["centroids"][label], trusted, self.reduce)
        return supervised + self.pull_now(*c.clock(self)) * pulled + self.lambda_ent * entropy(logits).mean()

    def stepped(self, c: Client, net: Net, batch: Batch) -> None:
        """The centroids follow the kept rows of each batch."""
        note = c.scratch(self)
        features, label = note["batch"]
        note["centroids"] = follow(note["centroids"], class_means(features, label, c.n_classes))
        note["seen"][label.cpu()] = True

    def finish(self, c: Client) -> Payload:
        """Centroids of the classes that were trained on and have a few rows; of the others nothing is told."""
        note, labelled = c.scratch(self), c.labels.given >= 0
        seen = note["seen"] & enough(note["label"][labelled], c.n_classes)
        return {"centroids": note["centroids"].cpu() * seen[:, None], "seen": seen.float()}

    def accepts(self, c: Client) -> bool:
        """Whether given labels are still taken as they are."""
        return in_warmup(*c.clock(self), self.correct_after)

    def pull_now(self, t: int, rounds: int) -> float:
        """λ_cen(t): in a straight line from 0 to the round in which correction begins."""
        return Ramp(0.0, self.lambda_cen, warmup_rounds(rounds, self.correct_after))(t)


def robust_fl(centroids: SharedCentroids) -> Method:
    """Robust FL; models are averaged with equal weights."""
    return Method("robust-fl", (Stage(parts=(centroids,), base="equal"),))
