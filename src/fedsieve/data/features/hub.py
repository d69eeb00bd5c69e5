"""Vision models of Hugging Face as feature maps, by their name on the hub or from a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedsieve.base.errors import ConfigError, DataError
from fedsieve.data.features.encoders import Encoder, Interpolation
from fedsieve.data.sources.hub import hub_answers, stay_offline

BICUBIC = 3
"""Pillow's number for it, which processors use; everything else is taken as bilinear."""


class VisionFeatures(nn.Module):
    """What the model pools; where it does not pool, the first token or the mean over the image plane."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        output = self.model(pixel_values=x)
        pooled = getattr(output, "pooler_output", None)
        if pooled is not None:
            return pooled.flatten(1)  # type: ignore[no-any-return]  # convolutional nets keep two axes of length 1
        hidden: Tensor = output.last_hidden_state
        return hidden.mean(dim=(2, 3)) if hidden.ndim == 4 else hidden[:, 0]


def hub_model(reference: str, size: int | None = None) -> Encoder:
    """The features of `reference`, whose images are brought to the size it was trained on, or to `size`.

    Mean, standard deviation, size and interpolation are those of its image processor. The whole image is resized;
    nothing is cut off at the borders.
    """
    try:
        from transformers import AutoModel, ImageProcessingMixin
    except ImportError:
        raise ConfigError(
            "FS008", f"hf:{reference} needs the package transformers. Run `pip install fedsieve[hf]`"
        ) from None
    path = Path(reference).expanduser()
    if not path.is_dir() and not hub_answers():
        stay_offline()
    place = str(path) if path.is_dir() else reference
    try:
        processor, _ = ImageProcessingMixin.get_image_processor_dict(place)
        model, report = AutoModel.from_pretrained(place, use_safetensors=True, output_loading_info=True)
    except Exception as problem:  # the package raises many kinds, depending on its version
        reason = str(problem).strip().split("\n")[0]
        raise DataError(
            "FS302" if path.exists() else "FS312",
            f"hf:{reference}: cannot be loaded ({type(problem).__name__}: {reason}). Check the name and the network, "
            "or save model and image processor with save_pretrained and give hf:FOLDER",
        ) from None
    vision = getattr(model, "vision_model", model)
    if getattr(vision, "main_input_name", "") != "pixel_values":
        raise DataError("FS302", f"hf:{reference}: {type(model).__name__} does not take images. Take a vision model")
    unlearnt = [name for name in report["missing_keys"] if "text" not in name]
    others = [name for name in unlearnt if "pooler." not in name]
    if others:
        raise DataError("FS302", f"hf:{reference}: its file lacks {others[0]}. Take a model with all its weights")
    if unlearnt:  # random numbers, for classifiers are published without the layer that pools
        vision.pooler = None
    mean, std = _moments(processor)
    side = (size, size) if size else _input_size(processor, reference)
    interpolation: Interpolation = "bicubic" if processor.get("resample") == BICUBIC else "bilinear"
    return Encoder(
        VisionFeatures(vision.float()), mean, std, size=side, interpolation=interpolation, name=f"hf:{reference}"
    )


def _moments(processor: Mapping[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """In 0..1, whatever the processor scales bytes by."""
    scale = 255.0 * processor.get("rescale_factor", 1 / 255) if processor.get("do_rescale", True) else 255.0
    if not processor.get("do_normalize", True):
        return (0.0,) * 3, (1.0 / scale,) * 3
    mean, std = (tuple(processor[name]) for name in ("image_mean", "image_std"))
    return tuple(value / scale for value in mean), tuple(value / scale for value in std)


def _input_size(processor: Mapping[str, Any], reference: str) -> tuple[int, int]:
    """What reaches the net: the crop, where the processor crops."""
    size = processor.get("crop_size") if processor.get("do_center_crop") else processor.get("size")
    if isinstance(size, int):
        return size, size
    if size and {"height", "width"} <= set(size):
        return size["height"], size["width"]
    if size and "shortest_edge" in size:
        return size["shortest_edge"], size["shortest_edge"]
    raise DataError("FS302", f"hf:{reference}: its image processor names no size. Give size=224 or another")
