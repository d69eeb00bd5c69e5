"""Random changes to training images, for whole batches at once; each sample has its own draw.

An augmentation is a name of `AUGMENTATIONS`, one of `ATOMS`, or several joined by plus (`crop+flip+cutout`), applied
from left to right. The draws are made on the processor, so that every device sees the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsieve.base.errors import ConfigError, nearest

Transform = Callable[[Tensor, torch.Generator], Tensor]
"""Images (B, C, H, W) in [0, 1] to images of the same shape, range and memory format."""


def augmentation(name: str) -> Transform | None:
    """The transform of a name; None when it changes nothing."""
    atoms: list[str] = []
    for piece in name.split("+"):
        if piece not in AUGMENTATIONS and piece not in ATOMS:
            raise ConfigError("FS004", f"unknown augmentation '{piece}'. {nearest(piece, {**AUGMENTATIONS, **ATOMS})}")
        atoms += AUGMENTATIONS.get(piece, (piece,))
    if not atoms:
        return None
    steps = [ATOMS[atom] for atom in atoms]

    def transform(x: Tensor, generator: torch.Generator) -> Tensor:
        y = x
        for step in steps:
            y = step(y, generator)
        channels_last = x.is_contiguous(memory_format=torch.channels_last)
        return y.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)

    return transform


# Position


def flip(x: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror half of the images left to right."""
    return torch.where(_chosen(x, 0.5, generator), x.flip(3), x)


def crop(x: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each image by up to an eighth of its side, zeros coming in (4 pixels of 32)."""
    _, _, height, width = x.shape
    down, right = max(1, height // 8), max(1, width // 8)
    top = torch.randint(2 * down + 1, (len(x),), generator=generator).to(x.device)
    left = torch.randint(2 * right + 1, (len(x),), generator=generator).to(x.device)
    return windows(F.pad(x, (right, right, down, down)), top, left, height, width)


def windows(x: Tensor, top: Tensor, left: Tensor, height: int, width: int) -> Tensor:
    """From each image the window of a given size whose corner is its own."""
    sample = torch.arange(len(x), device=x.device)[:, None, None]
    rows = (top[:, None] + torch.arange(height, device=x.device))[:, :, None]
    columns = (left[:, None] + torch.arange(width, device=x.device))[:, None, :]
    return x.permute(0, 2, 3, 1)[sample, rows, columns].permute(0, 3, 1, 2)


def resized_crop(x: Tensor, generator: torch.Generator) -> Tensor:
    """A part of 20 to 100 % of the area, 3:4 to 4:3 in shape, enlarged to the whole; bounded by the image."""
    area = _uniform(x, 0.2, 1.0, generator)
    ratio = _uniform(x, math.log(3 / 4), math.log(4 / 3), generator).exp()
    height = (area / ratio).sqrt().clamp(max=1)
    width = (area * ratio).sqrt().clamp(max=1)
    top = _uniform(x, 0.0, 1.0, generator) * (1 - height)
    left = _uniform(x, 0.0, 1.0, generator) * (1 - width)
    return enlarge(x, top, left, height, width)


def enlarge(x: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor) -> Tensor:
    """Each image's own box, in parts of its sides, drawn over the whole image (bilinear)."""
    zero = torch.zeros_like(top)
    box = torch.stack([width, zero, 2 * left + width - 1, zero, height, 2 * top + height - 1], dim=1)
    return _sample(x, box.view(-1, 2, 3), padding="border")


def rotate(x: Tensor, generator: torch.Generator) -> Tensor:
    """Turn each image by up to 30 degrees either way, zeros coming in."""
    return warp(x, _rotation(_uniform(x, -math.radians(30), math.radians(30), generator)))


def cutout(x: Tensor, generator: torch.Generator) -> Tensor:
    """Paint a square of half the side mid-grey, its centre anywhere in the image (DeVries and Taylor 2017)."""
    _, _, height, width = x.shape
    row = torch.randint(height, (len(x),), generator=generator).to(x.device)
    column = torch.randint(width, (len(x),), generator=generator).to(x.device)
    return paint_square(x, row, column, min(height, width) // 2)


def paint_square(x: Tensor, row: Tensor, column: Tensor, side: int) -> Tensor:
    """Mid-grey over the `side` pixels from `side // 2` before each image's own centre on, cut at the border."""
    from_top = torch.arange(x.shape[2], device=x.device) - (row[:, None] - side // 2)
    from_left = torch.arange(x.shape[3], device=x.device) - (column[:, None] - side // 2)
    rows = (from_top >= 0) & (from_top < side)
    columns = (from_left >= 0) & (from_left < side)
    return x.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0.5)


def warp(x: Tensor, matrix: Tensor) -> Tensor:
    """Move each image by its own 2 x 3 matrix: where an output pixel comes from, in pixels from the centre."""
    _, _, height, width = x.shape
    scale = matrix.new_tensor([[1, height / width, 2 / width], [width / height, 1, 2 / height]])
    return _sample(x, matrix * scale, padding="zeros")


def _sample(x: Tensor, theta: Tensor, padding: str) -> Tensor:
    grid = F.affine_grid(theta.to(x.dtype), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode=padding, align_corners=False).clamp(0, 1)


# Colour: `factor` has one number for each image; 1 leaves it as it is


def grey_of(x: Tensor) -> Tensor:
    """The luma of colour images (ITU-R BT.601), one channel; the mean of the channels where they are not three."""
    if x.shape[1] != 3:
        return x.mean(dim=1, keepdim=True)
    return (x * x.new_tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(dim=1, keepdim=True)


def brightness(x: Tensor, factor: Tensor) -> Tensor:
    return _blend(torch.zeros_like(x), x, factor)


def contrast(x: Tensor, factor: Tensor) -> Tensor:
    return _blend(grey_of(x).mean(dim=(1, 2, 3), keepdim=True), x, factor)


def saturation(x: Tensor, factor: Tensor) -> Tensor:
    return _blend(grey_of(x), x, factor) if x.shape[1] == 3 else x


def sharpness(x: Tensor, factor: Tensor) -> Tensor:
    """Away from (above 1) or towards (below 1) a 3 x 3 smoothing that weighs the centre by 5/13; borders stay."""
    channels = x.shape[1]
    kernel = x.new_ones(3, 3)
    kernel[1, 1] = 5
    smooth = x.clone()
    smooth[:, :, 1:-1, 1:-1] = F.conv2d(x, (kernel / 13).expand(channels, 1, 3, 3), groups=channels)
    return _blend(smooth, x, factor)


def hue(x: Tensor, turn: Tensor) -> Tensor:
    """Turn the colour circle of each image by `turn` rounds, by way of hue, saturation and value."""
    if x.shape[1] != 3:
        return x
    red, green, blue = x.unbind(dim=1)
    value, low = x.amax(dim=1), x.amin(dim=1)
    chroma = value - low
    safe = torch.where(chroma > 0, chroma, 1)
    sixths = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    position = sixths + 6 * turn.to(x.dtype).view(-1, 1, 1)
    colours = []
    for offset in (5, 3, 1):
        k = torch.remainder(position + offset, 6)
        colours.append(value - chroma * torch.minimum(k, 4 - k).clamp(0, 1))
    return torch.stack(colours, dim=1)


def jitter(
    x: Tensor,
    generator: torch.Generator,
    strength: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1),
    probability: float = 0.8,
) -> Tensor:
    """Change brightness, contrast, saturation (factors 1 ± strength) and hue (± rounds), in this order."""
    bright, contrasted, saturated, turned = strength
    y = brightness(x, _uniform(x, 1 - bright, 1 + bright, generator))
    y = contrast(y, _uniform(x, 1 - contrasted, 1 + contrasted, generator))
    y = saturation(y, _uniform(x, 1 - saturated, 1 + saturated, generator))
    y = hue(y, _uniform(x, -turned, turned, generator))
    return torch.where(_chosen(x, probability, generator), y, x)


def strong_jitter(x: Tensor, generator: torch.Generator) -> Tensor:
    """Colour jitter of twice the usual strength (SimCLR's for large images)."""
    return jitter(x, generator, strength=(0.8, 0.8, 0.8, 0.2))


def grey(x: Tensor, generator: torch.Generator) -> Tensor:
    """Take the colour out of every fifth image."""
    chosen = _chosen(x, 0.2, generator)
    return torch.where(chosen, grey_of(x), x) if x.shape[1] == 3 else x


def _blend(base: Tensor, x: Tensor, factor: Tensor) -> Tensor:
    return (base + factor.to(x.dtype).view(-1, 1, 1, 1) * (x - base)).clamp(0, 1)


# Tone, each on the 256 levels of a stored image


def posterise(x: Tensor, bits: int) -> Tensor:
    """Keep the upper bits of the eight."""
    step = 1 << (8 - bits)
    return (_levels(x) // step * step).to(x.dtype) / 255


def solarise(x: Tensor, threshold: float) -> Tensor:
    """Invert what is at least as bright as the threshold."""
    return torch.where(x >= threshold, 1 - x, x)


def autocontrast(x: Tensor) -> Tensor:
    """Stretch each channel to the whole range."""
    low, high = x.amin(dim=(2, 3), keepdim=True), x.amax(dim=(2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / torch.where(high > low, high - low, 1), x).clamp(0, 1)


def equalise(x: Tensor) -> Tensor:
    """Spread the levels of each channel evenly over its pixels."""
    batch, channels, height, width = x.shape
    levels = _levels(x).reshape(batch * channels, height * width)
    counts = torch.zeros(batch * channels, 256, dtype=torch.int64, device=x.device)
    counts.scatter_add_(1, levels, torch.ones_like(levels))
    top = levels.amax(dim=1, keepdim=True)
    step = (height * width - counts.gather(1, top)) // 255
    below = counts.cumsum(dim=1) - counts
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    changed = table.gather(1, levels).to(x.dtype).view_as(x) / 255
    return torch.where((step > 0).view(batch, channels, 1, 1), changed, x)


def _levels(x: Tensor) -> Tensor:
    return (x * 255).round().long()


# RandAugment (Cubuk et al. 2020)

OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "identity": lambda x, _: x,
    "autocontrast": lambda x, _: autocontrast(x),
    "equalise": lambda x, _: equalise(x),
    "rotate": lambda x, signed: warp(x, _rotation(signed * math.radians(30))),
    "solarise": lambda x, signed: solarise(x, 1 - _strength(signed)),
    "colour": lambda x, signed: saturation(x, 1 + 0.9 * signed),
    "posterise": lambda x, signed: posterise(x, 8 - round(4 * _strength(signed))),
    "contrast": lambda x, signed: contrast(x, 1 + 0.9 * signed),
    "brightness": lambda x, signed: brightness(x, 1 + 0.9 * signed),
    "sharpness": lambda x, signed: sharpness(x, 1 + 0.9 * signed),
    "shear-x": lambda x, signed: warp(x, _matrix(signed, xy=0.3)),
    "shear-y": lambda x, signed: warp(x, _matrix(signed, yx=0.3)),
    "translate-x": lambda x, signed: warp(x, _matrix(signed, x=0.45 * x.shape[3])),
    "translate-y": lambda x, signed: warp(x, _matrix(signed, y=0.45 * x.shape[2])),
}
"""Images and, for each, plus or minus the strength in [0, 1], the same strength for all."""


def randaugment(x: Tensor, generator: torch.Generator, count: int = 2, magnitude: int = 10) -> Tensor:
    """To each image `count` operations drawn from the list, all of strength `magnitude` out of 30."""
    operations = torch.randint(len(OPERATIONS), (count, len(x)), generator=generator).to(x.device)
    signs = (torch.randint(2, (count, len(x)), generator=generator) * 2 - 1).to(x.device, x.dtype)
    y = x.clone()
    for drawn, sign in zip(operations, signs, strict=True):
        for number, operation in enumerate(OPERATIONS.values()):
            rows = (drawn == number).nonzero().squeeze(1)
            if len(rows):
                y[rows] = operation(y[rows], sign[rows] * magnitude / 30)
    return y


def _strength(signed: Tensor) -> float:
    return float(signed[0].abs())


def _matrix(signed: Tensor, xy: float = 0, yx: float = 0, x: float = 0, y: float = 0) -> Tensor:
    """The identity plus `signed` times the given entries."""
    unit = signed.new_tensor([[1, 0, 0], [0, 1, 0]])
    return unit + signed.view(-1, 1, 1) * signed.new_tensor([[0, xy, x], [yx, 0, y]])


def _rotation(angle: Tensor) -> Tensor:
    cosine, sine, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    return torch.stack([cosine, -sine, zero, sine, cosine, zero], dim=1).view(-1, 2, 3)


def _chosen(x: Tensor, probability: float, generator: torch.Generator) -> Tensor:
    """Which images a change applies to, shaped to spread over them."""
    return (torch.rand(len(x), generator=generator) < probability).to(x.device).view(-1, 1, 1, 1)


def _uniform(x: Tensor, low: float, high: float, generator: torch.Generator) -> Tensor:
    return (low + (high - low) * torch.rand(len(x), generator=generator)).to(x.device)


ATOMS: dict[str, Transform] = {
    "flip": flip,
    "crop": crop,
    "resized-crop": resized_crop,
    "rotate": rotate,
    "jitter": jitter,
    "strong-jitter": strong_jitter,
    "grey": grey,
    "randaugment": randaugment,
    "cutout": cutout,
}

AUGMENTATIONS: dict[str, tuple[str, ...]] = {
    "none": (),
    "flip": ("flip",),
    "weak": ("crop", "flip"),
    "strong": ("crop", "flip", "randaugment", "cutout"),
    "contrastive": ("resized-crop", "flip", "jitter", "grey"),
    "colour": ("flip", "strong-jitter", "grey"),
}
"""The named augmentations and the atoms they are made of."""
