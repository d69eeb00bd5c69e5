"""FedCorr's first stage as in the authors' code."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedsieve.core import Batch, Client, Net, Server
from fedsieve.estimate.gmm1d import GaussianMixture1D
from fedsieve.estimate.lid import local_dimensions
from fedsieve.methods.fedcorr_lid import LidCorrection
from fedsieve.parts.credit import column, known_values
from fedsieve.parts.losses import cross_entropy
from fedsieve.parts.published import Published
from fedsieve.parts.selection import lower_hump


@dataclass(frozen=True, kw_only=True)
class PublishedLidCorrection(Published, LidCorrection):
    """Sums of dimensions by another formula, mixtures on values that are not scaled, and a distance not squared."""

    def scores(self, s: Server) -> dict[int, float]:
        """Of a client that missed a visit the sum is smaller."""
        return known_values(column(s, "dimension"))

    def clean_posterior(self, values: Tensor, fewest: int) -> Tensor:
        return lower_hump(values.double(), GaussianMixture1D(reg_covar=1e-6, min_size=fewest), guard=self.guard)

    def gradient(self, c: Client, net: Net, batch: Batch) -> None:
        """That of β μ̂_k ‖w − w_t‖, but in each epoch's first batch."""
        strength = self.beta * c.brief(self).number("noise")
        if not strength:
            return
        if c.scratch(self).get("epoch") == c.epoch:
            drift = net.weights - net.received[: len(net.grad)]
            net.grad.add_(drift / drift.norm().clamp_min(1e-12), alpha=strength)
        c.scratch(self)["epoch"] = c.epoch

    def losses(self, logits: Tensor, target: Tensor) -> Tensor:
        """Softmax is applied twice."""
        return cross_entropy(logits.softmax(1), target)

    def dimension(self, outputs: Tensor) -> float:
        return float(local_dimensions(outputs.numpy(), self.neighbours, published=True).mean())
