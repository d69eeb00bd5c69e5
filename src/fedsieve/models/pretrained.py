"""ResNets that others trained, with labels or without: safetensors whose tensors are named as torchvision names them.

Such a file comes from anywhere. Its tensors are used only if their names, shapes and kinds are those of a net that is
known here. Whatever stands on the net (a classifier, the projection of SimCLR) is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, Field, FiniteFloat, Json, ValidationError, model_validator
from torch import Tensor, nn

from fedsieve.base.errors import DataError
from fedsieve.models import build_model
from fedsieve.models.weights import Weights

KNOWN: dict[tuple[int, tuple[int, ...]], str] = {
    (2, (1, 1, 1, 1)): "resnet10",
    (2, (2, 2, 2, 2)): "resnet18",
    (2, (3, 4, 6, 3)): "resnet34",
    (3, (3, 4, 6, 3)): "resnet50",
}
"""By the convolutions of a block and the blocks of each stage."""
STEM, BLOCK = "conv1.weight", "layer1.0.conv1.weight"
LAYER = re.compile(
    r"(?:(?P<first>conv|bn)1|layer(?P<stage>[1-4])\.(?P<block>\d{1,2})\."
    r"(?:(?P<kind>conv|bn)(?P<place>[1-3])|downsample\.(?P<side>[01])))\.(?P<tensor>\w+)"
)
COUNTER = "num_batches_tracked"
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
Positive = Annotated[FiniteFloat, Field(gt=0)]


class Images(BaseModel):
    """What a file's metadata may say of the images that its net takes, as JSON; ImageNet's usual values if nothing."""

    mean: Json[list[FiniteFloat]] = [0.485, 0.456, 0.406]
    std: Json[list[Positive]] = [0.229, 0.224, 0.225]
    size: Json[Annotated[int, Field(ge=1, le=4096)]] = 224

    @model_validator(mode="after")
    def _fits_together(self) -> Images:
        if not 1 <= len(self.mean) == len(self.std) <= 16:
            raise ValueError("mean and std are not of the same channels")
        return self


@dataclass(frozen=True)
class Pretrained:
    """The net of one file, without what stands on it."""

    file: Path
    model: str
    options: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    """In float32, under the names that our model has for them; counters of batches are not among them."""
    images: Images

    @staticmethod
    def of(weights: Weights) -> Pretrained:
        file, named = weights.file, weights.tensors
        try:
            images = Images.model_validate(weights.metadata)
        except ValidationError as problem:
            first = problem.errors()[0]
            raise _unfit(file, f"metadata {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        prefix = _prefix(file, named)
        inner = {name.removeprefix(prefix): tensor for name, tensor in named.items() if name.startswith(prefix)}
        layers = {name: tensor for name, tensor in inner.items() if name.startswith(("conv", "bn", "layer"))}
        tensors = {_renamed(file, name): tensor for name, tensor in layers.items()}
        blocks = {tuple(name.split(".")[:2]) for name in layers if name.startswith("layer")}
        depths = tuple(sum(stage == f"layer{number}" for stage, _ in blocks) for number in range(1, 5))
        model = KNOWN.get((3 if "layer1.0.conv3.weight" in layers else 2, depths))
        if model is None:
            raise _unfit(file, f"its stages have {', '.join(map(str, depths))} blocks")
        options = {"stem": "imagenet" if layers[STEM].shape[2:] == (7, 7) else "cifar"}
        if model == "resnet50":
            options["stride_on"] = "3x3"
        tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith(COUNTER)}
        found = Pretrained(file, model, options, tensors, images)
        found._check()
        return Pretrained(file, model, options, {name: t.float() for name, t in tensors.items()}, images)

    def body(self) -> nn.Module:
        """From images to features, in evaluation mode."""
        model = self._on_paper()
        kept = {name: torch.tensor(0) for name in model.state_dict() if name.endswith(COUNTER)}
        model.load_state_dict(kept | dict(self.tensors), strict=False, assign=True)  # the head stays on paper
        return model.get_submodule("body").eval()

    def _on_paper(self) -> nn.Module:
        """Takes no memory, and draws nothing at random."""
        shape = (len(self.images.mean), self.images.size, self.images.size)
        with torch.device("meta"):
            return build_model(self.model, shape, 2, options=self.options)

    def _check(self) -> None:
        """In the order of the net, so that the first tensor that does not fit is named."""
        wanted = {
            name: tuple(tensor.shape)
            for name, tensor in self._on_paper().state_dict().items()
            if not name.startswith("head.") and not name.endswith(COUNTER)
        }
        for name in dict.fromkeys((*wanted, *sorted(self.tensors))):
            found = self.tensors.get(name)
            if found is None:
                raise _unfit(self.file, f"{name} of {self.model} is missing")
            if tuple(found.shape) != wanted.get(name) or found.dtype not in FLOATS:
                is_now = f"{name} is {found.dtype} of shape {tuple(found.shape)}"
                raise _unfit(self.file, f"{is_now}, in {self.model} float of shape {wanted.get(name)}")
            if not bool(found.isfinite().all()):
                raise DataError("FS304", f"{self.file}: {name} holds NaN or infinity. Take another file")


def _prefix(file: Path, names: Mapping[str, Tensor]) -> str:
    """What stands before the names of the net: `module.`, `encoder.`, `backbone.`, or whatever else."""
    found = [name.removesuffix(STEM) for name in names if name.endswith(STEM)]
    nets = [prefix for prefix in found if f"{prefix}{BLOCK}" in names]
    if len(nets) != 1:
        raise _unfit(file, f"it has {STEM} and {BLOCK} {len(nets)} times")
    return nets[0]


def _renamed(file: Path, name: str) -> str:
    """torchvision's name of a tensor as ours."""
    parts = LAYER.fullmatch(name)
    if parts is None:
        raise _unfit(file, f"{name} belongs to no ResNet")
    if parts["first"]:
        return f"body.stem.{0 if parts['first'] == 'conv' else 1}.{parts['tensor']}"
    at = f"body.stages.{int(parts['stage']) - 1}.{int(parts['block'])}"
    if parts["side"]:
        return f"{at}.shortcut.{parts['side']}.{parts['tensor']}"
    place = 3 * (int(parts["place"]) - 1) + (parts["kind"] == "bn")
    return f"{at}.residual.{place}.{parts['tensor']}"


def _unfit(file: Path, reason: str) -> DataError:
    return DataError(
        "FS302",
        f"{file}: no ResNet that is known here ({reason}). Give one of 10, 18, 34 or 50 layers with torchvision's "
        "names, or a run's model.safetensors",
    )
