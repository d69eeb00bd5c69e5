"""Local K-similarity: the neighbourhoods of a frozen encoder regularise each client's features.

After the paper on local K-similarity constraints for federated learning with label noise; Eq. 2 to 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, PositiveInt
from torch import Tensor

from fedsieve.core import Batch, Client, Method, Net, Part, Stage
from fedsieve.data.samples import Samples
from fedsieve.methods.ksim_similarity import k_similarity
from fedsieve.parts.frozen import AUTO, FrozenViews, nearest, nearest_rows


@dataclass(frozen=True, kw_only=True)
class KSimilarity(Part):
    """Draws each sample's features to those of the K samples of its batch that a frozen encoder finds most alike.

    The paper leaves open whether the client's features have length one in the term (it says that those of the
    logits are not normalised), whether a row stands in its own denominator (its formula says so, its count of negatives
    does not), and whether the encoder sees the augmented image. Defaults are: length one, no, the stored image, whose
    features are computed once. It reads no labels. A batch of one row has no neighbours and no term.
    """

    k: PositiveInt = 4
    """K, neighbours of each sample in its batch; cut where the batch is small."""
    temperature: Annotated[float, Field(gt=0)] = 0.3
    """T of the contrast."""
    weight: Annotated[float, Field(ge=0)] = 3.0
    """λ, the weight of the term beside the loss."""
    normalise: bool = True
    """Whether the client's features have length one in the term; the products of others grow without bound."""
    with_self: bool = False
    """Whether a sample stands in its own denominator."""
    features: str = AUTO
    """The frozen encoder: auto (HOG), or any other feature map by name, FILE.safetensors or hf:NAME."""
    size: PositiveInt | None = None
    """Side in pixels to which images are brought for the encoder, where it takes a choice."""
    reference: Literal["stored", "augmented"] = "stored"
    """What the encoder sees: the images as they are stored, once, or each batch as it is augmented."""

    def term(self, c: Client, net: Net, batch: Batch) -> Tensor:
        z = net.features(batch)
        if len(z) < 2:
            return z.new_zeros(())
        views: FrozenViews = c.scratch(self).setdefault("views", FrozenViews(c.samples, self.features, self.size))
        near = nearest(views.alike(batch, "clean" if self.reference == "stored" else "train").to(z.device), self.k)
        each = k_similarity(z, near, self.temperature, with_self=self.with_self, unit=self.normalise)
        return self.weight * each.mean()  # Eq. 3 and 4

    def retrieve(self, samples: Samples, rows: Tensor) -> Tensor:
        """N(i) in a batch of these rows as they are stored."""
        return nearest_rows(FrozenViews(samples, self.features, self.size).stored[rows], self.k)


def ksim(similarity: KSimilarity) -> Method:
    """Local K-similarity on top of FedAvg, or of the loss and the aggregation that it is composed with."""
    return Method("ksim", (Stage(parts=(similarity,)),))
