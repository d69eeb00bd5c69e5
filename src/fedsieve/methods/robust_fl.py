"""Robust FL: clients share class centroids, and trust labels that lie close to them (Yang et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize, one_hot

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
from fedsieve.parts.few_rows import enough
from fedsieve.parts.losses import cross_entropy, entropy
from fedsieve.parts.selection import rows_kept, smallest, warming, warmup_rounds

Reduce = Literal["mean", "sum", "features"]


def known(centroids: Tensor) -> Tensor:
    """Classes that have a centroid: a row of zeros is none, since it has no direction."""
    return (centroids != 0).any(1)


def similarities(features: Tensor, centroids: Tensor) -> Tensor:
    """The cosine of each row with each class's centroid, (n, C); −1 for a class without one."""
    cosines = normalize(features.float()) @ normalize(centroids).T
    return torch.where(known(centroids), cosines, -1.0)


def class_means(features: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """The mean feature of each class, (C, d); zeros for a class without a row."""
    members = one_hot(labels, n_classes).to(features)
    return members.T @ features / members.sum(0).clamp_min(1.0)[:, None]


def followed(centroids: Tensor, fresh: Tensor) -> Tensor:
    """F ← (1 − s²) F + s² F̂, s = cos(F, F̂), for the classes that F̂ has; a class without F takes F̂."""
    pace = cosine_similarity(centroids, fresh).square()
    pace = torch.where(known(centroids), pace, 1.0) * known(fresh)
    return torch.lerp(centroids, fresh, pace[:, None])


def merged(centroids: Tensor, reported: Tensor, seen: Tensor) -> Tensor:
    """F_c ← Σ_k s_k F_kc / Σ_k s_k over the clients that saw class c, s_k = max(0, cos(F_c, F_kc)).

    Where all s_k are 0, as they are while F_c is not known, it is the plain mean; a class seen by nobody stays.
    """
    trust = cosine_similarity(centroids[None], reported, dim=2).clamp_min(0.0) * seen
    trust = torch.where(trust.sum(0) > 0, trust, seen)
    total = trust.sum(0)[:, None]
    mean = (trust[:, :, None] * reported).sum(0) / total.where(total > 0, 1.0)
    return torch.where(total > 0, mean, centroids)


def pull(features: Tensor, towards: Tensor, mask: Tensor, over: Reduce) -> Tensor:
    """‖f − F_y‖² over the rows in the mask; the gradient goes through f."""
    total = ((features - towards).square().sum(1) * mask).sum()
    if over == "sum":
        return total
    mean = total / mask.sum().clamp_min(1)
    return mean if over == "mean" else mean / features.shape[1]


def margin(similarity: Tensor, labels: Tensor) -> Tensor:
    """In [0, 1]: above one half if the label's centroid is the most similar one, below if another is."""
    own = similarity.gather(1, labels[:, None]).flatten()
    best_other = similarity.scatter(1, labels[:, None], -1.0).amax(1)
    return ((1.0 + own - best_other) / 2.0).clamp(0.0, 1.0)


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

    down = {"centroids": ("C", "d")}
    up = {"centroids": Sent(("C", "d"), paced=True), "seen": flags("C")}
    remembers = {"centroids": ("C", "d")}
    labels = True
    nets = 1

    # --- server half
    def recall(self, s: Server) -> dict[str, Tensor]:
        return {"centroids": torch.zeros(s.plan.n_classes, s.plan.sizes["d"])}

    def brief(self, s: Server, client: int) -> Payload:
        return {"centroids": s.memory["centroids"]}

    def learn(self, s: Server, ups: Ups, w: Weights) -> None:
        notes = [ups[k].notes[self.name] for k in sorted(ups) if self.name in ups[k].notes]
        if notes:
            reported, seen = (torch.stack([_tensor(note, name) for note in notes]) for name in ("centroids", "seen"))
            s.memory["centroids"] = merged(s.memory["centroids"].double(), reported.double(), seen.double()).float()

    # --- client half
    def start(self, c: Client) -> None:
        """Pseudo labels by the received model, and the centroids to begin with."""
        labelled, label = c.labels.given >= 0, c.labels.target.argmax(1)
        out = c.outputs(c.nets[0])
        features = out.features.float()
        received = _tensor(c.brief(self), "centroids").to(features.device)
        own = class_means(features[labelled], label[labelled].to(features.device), c.n_classes)
        centroids = torch.where(known(received)[:, None], received, own)
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
        note["centroids"] = followed(note["centroids"], class_means(features, label, c.n_classes))
        note["seen"][label.cpu()] = True

    def finish(self, c: Client) -> Payload:
        """Centroids of the classes that were trained on and have a few rows; of the others nothing is told."""
        note, labelled = c.scratch(self), c.labels.given >= 0
        seen = note["seen"] & enough(note["label"][labelled], c.n_classes)
        return {"centroids": note["centroids"].cpu() * seen[:, None], "seen": seen.float()}

    def accepts(self, c: Client) -> bool:
        """Whether given labels are still taken as they are."""
        return warming(*c.clock(self), self.correct_after)

    def pull_now(self, t: int, rounds: int) -> float:
        """λ_cen(t): in a straight line from 0 to the round in which correction begins."""
        return Ramp(0.0, self.lambda_cen, warmup_rounds(rounds, self.correct_after))(t)


def _tensor(payload: Payload, name: str) -> Tensor:
    value = payload[name]
    assert isinstance(value, Tensor)
    return value


def robust_fl(centroids: SharedCentroids) -> Method:
    """Robust FL; models are averaged with equal weights."""
    return Method("robust-fl", (Stage(parts=(centroids,), base="equal"),))
