from __future__ import annotations

import colorsys
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from fedsieve.base.errors import ConfigError
from fedsieve.data import augment
from fedsieve.data.augment import ATOMS, AUGMENTATIONS, augmentation

CHANGING = sorted({*AUGMENTATIONS, *ATOMS} - {"none"})


def images(count: int = 8, channels: int = 3, height: int = 16, width: int = 16, seed: int = 1) -> Tensor:
    return torch.rand(count, channels, height, width, generator=torch.Generator().manual_seed(seed))


def stored(count: int = 3, channels: int = 3, side: int = 24) -> Tensor:
    """Images on the 256 levels of a file, not using the darkest and the brightest ones."""
    levels = torch.randint(20, 200, (count, channels, side, side), generator=torch.Generator().manual_seed(5))
    return levels.float() / 255


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def apply(name: str, x: Tensor, seed: int = 0) -> Tensor:
    transform = augmentation(name)
    assert transform is not None
    return transform(x, rng(seed))


def by_pillow(x: Tensor, change: object) -> Tensor:
    """The same change made by Pillow, image by image."""
    changed = []
    for image in x:
        pixels = (image.permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
        done = change(Image.fromarray(pixels))  # type: ignore[operator]
        changed.append(torch.from_numpy(np.asarray(done).copy()).permute(2, 0, 1).float() / 255)
    return torch.stack(changed)


# Names


def test_none_is_nothing() -> None:
    assert augmentation("none") is None
    assert augmentation("none+none") is None


def test_names_expand_to_their_atoms_in_order() -> None:
    x = images()
    assert torch.equal(apply("weak", x), apply("crop+flip", x))
    assert torch.equal(apply("strong", x), apply("weak+randaugment+cutout", x))
    assert torch.equal(apply("contrastive", x), apply("resized-crop+flip+jitter+grey", x))
    assert torch.equal(apply("colour", x), apply("flip+strong-jitter+grey", x))
    generator = rng()
    assert torch.equal(apply("crop+cutout", x), augment.cutout(augment.crop(x, generator), generator))


@pytest.mark.parametrize(("name", "piece", "meant"), [("flop", "flop", "flip"), ("crop+cutoot", "cutoot", "cutout")])
def test_unknown_names(name: str, piece: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown augmentation '{piece}'. Did you mean '{meant}'") as caught:
        augmentation(name)
    assert caught.value.code == "FS004"


# What all have in common


@pytest.mark.parametrize("name", CHANGING)
def test_the_seed_decides(name: str) -> None:
    x = images(16)
    before = x.clone()
    assert torch.equal(apply(name, x, 4), apply(name, x, 4))
    assert not torch.equal(apply(name, x, 4), apply(name, x, 5))
    assert torch.equal(x, before)


@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("channels_last", [False, True])
def test_shape_range_and_memory_format_are_kept(name: str, channels: int, channels_last: bool) -> None:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x = images(32, channels, 16, 12).contiguous(memory_format=layout)
    x[:4] = 0
    x[4:8] = 1
    y = apply(name, x)
    assert y.shape == x.shape
    assert y.dtype == x.dtype
    assert y.is_contiguous(memory_format=layout)
    assert y.isfinite().all()
    assert y.min() >= 0
    assert y.max() <= 1
    assert torch.allclose(y, apply(name, x.contiguous()), atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(CHANGING),
    shape=st.tuples(st.integers(1, 5), st.sampled_from([1, 2, 3, 4]), st.integers(3, 11), st.integers(3, 11)),
    seed=st.integers(0, 2**31),
)
def test_any_shape(name: str, shape: tuple[int, int, int, int], seed: int) -> None:
    y = apply(name, images(*shape), seed)
    assert y.shape == shape
    assert 0 <= y.min() <= y.max() <= 1


@pytest.mark.parametrize("name", ["jitter", "strong-jitter", "rotate", "randaugment", "resized-crop"])
def test_samples_of_a_batch_are_changed_apart(name: str) -> None:
    """Equal images come out different, and an image does not care what its neighbours show."""
    one = images(1)
    alike = apply(name, one.expand(24, -1, -1, -1).contiguous())
    assert len({tuple(y.flatten().tolist()) for y in alike}) > 6

    x = images(24)
    other = x.clone()
    other[1:] = 1 - other[1:]
    assert torch.allclose(apply(name, x)[0], apply(name, other)[0], atol=1e-6)


def test_colour_means_nothing_to_a_grey_image() -> None:
    x = images(32, channels=1)
    assert torch.equal(apply("grey", x), x)
    assert torch.equal(augment.saturation(x, torch.full((32,), 0.3)), x)
    assert torch.equal(augment.hue(x, torch.full((32,), 0.3)), x)


# Position


def test_flip_mirrors_about_half_and_leaves_the_rest() -> None:
    x = images(400, 1, 2, 3)
    y = apply("flip", x)
    mirrored = (y == x.flip(3)).flatten(1).all(dim=1)
    same = (y == x).flatten(1).all(dim=1)
    assert (mirrored ^ same).all()
    assert 160 < int(mirrored.sum()) < 240
    assert torch.equal(mirrored, torch.rand(400, generator=rng()) < 0.5)


def test_windows_by_hand() -> None:
    x = torch.arange(16.0).view(1, 1, 4, 4).expand(2, 1, 4, 4)
    y = augment.windows(x, torch.tensor([0, 2]), torch.tensor([1, 2]), 2, 2)
    assert y[:, 0].tolist() == [[[1, 2], [5, 6]], [[10, 11], [14, 15]]]


def test_crop_takes_every_shift_of_one_pixel_and_fills_with_zeros() -> None:
    x = torch.arange(1.0, 10).view(1, 1, 3, 3) / 10
    shifts = set()
    for down in range(3):
        for right in range(3):
            padded = torch.zeros(5, 5)
            padded[1:4, 1:4] = x[0, 0]
            shifts.add(tuple(padded[down : down + 3, right : right + 3].flatten().tolist()))
    seen = {tuple(y.flatten().tolist()) for y in apply("crop", x.expand(300, 1, 3, 3))}
    assert seen == shifts


@pytest.mark.parametrize(("side", "most"), [(8, 1), (32, 4)])
def test_crop_shifts_by_up_to_an_eighth(side: int, most: int) -> None:
    x = torch.zeros(2000, 1, side, side)
    x[:, :, side // 2, side // 2] = 1
    _, _, rows, columns = apply("crop", x).nonzero(as_tuple=True)
    for moved in (rows - side // 2, columns - side // 2):
        assert set(moved.tolist()) == set(range(-most, most + 1))


def test_paint_square_by_hand() -> None:
    x = torch.zeros(2, 1, 4, 4)
    y = augment.paint_square(x, torch.tensor([2, 0]), torch.tensor([1, 3]), 2)
    grey = 0.5
    assert y[0, 0].tolist() == [[0, 0, 0, 0], [grey, grey, 0, 0], [grey, grey, 0, 0], [0, 0, 0, 0]]
    assert y[1, 0].tolist() == [[0, 0, grey, grey], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]


def test_cutout_covers_at_most_a_quarter_in_every_channel_alike() -> None:
    y = apply("cutout", torch.zeros(500, 3, 8, 8))
    covered = (y == 0.5).sum(dim=(2, 3))
    assert torch.equal(covered[:, 0], covered[:, 2])
    assert int(covered.max()) == 16
    assert int(covered.min()) == 4
    assert ((y == 0.5) | (y == 0)).all()


def test_enlarge_by_hand() -> None:
    x = images(2, 3, 8, 8)
    zero, one, half = torch.zeros(2), torch.ones(2), torch.full((2,), 0.5)
    assert torch.allclose(augment.enlarge(x, zero, zero, one, one), x, atol=1e-6)
    quarter = augment.enlarge(x, half, zero, half, half)
    expected = torch.nn.functional.interpolate(
        torch.nn.functional.pad(x, (1, 1, 1, 1), mode="replicate")[:, :, 4:, :6], scale_factor=2, mode="bilinear"
    )[:, :, 2:-2, 2:-2]
    assert torch.allclose(quarter, expected, atol=1e-5)


def test_resized_crop_areas() -> None:
    """On a ramp, the span of a side tells the part of it that was taken."""
    side = 64
    ramp = (torch.arange(side) + 0.5) / side
    x = torch.stack([ramp.expand(side, side), ramp.view(-1, 1).expand(side, side)]).expand(500, 2, side, side)
    y = apply("resized-crop", x)
    width = (y[:, 0, 0, -2] - y[:, 0, 0, 1]) * side / (side - 3)
    height = (y[:, 1, -2, 0] - y[:, 1, 1, 0]) * side / (side - 3)
    area = width * height
    assert 0.18 < float(area.min()) < 0.25
    assert 0.9 < float(area.max()) <= 1.02
    assert 0.72 < float((width / height).min()) < 0.8
    assert 1.25 < float((width / height).max()) < 1.36


def test_warp_by_whole_pixels() -> None:
    x = images(1, 2, 4, 6)
    right = augment.warp(x, torch.tensor([[[1.0, 0, -2], [0, 1, 1]]]))
    expected = torch.zeros_like(x)
    expected[:, :, :3, 2:] = x[:, :, 1:, :4]
    assert torch.allclose(right, expected, atol=1e-5)


def test_warp_by_quarter_turn_of_a_square() -> None:
    x = images(1, 1, 5, 5)
    turned = augment.warp(x, augment._rotation(torch.tensor([math.pi / 2])))
    assert torch.allclose(turned, torch.rot90(x, 1, dims=(2, 3)), atol=1e-5)


def test_warp_turns_without_distortion_when_not_square() -> None:
    x = torch.zeros(1, 1, 5, 9)
    x[0, 0, 2, 2:7] = 1
    turned = augment.warp(x, augment._rotation(torch.tensor([math.pi / 2])))
    expected = torch.zeros(5, 9)
    expected[:, 4] = 1
    assert torch.allclose(turned[0, 0], expected, atol=1e-5)


def test_rotate_turns_each_image_by_up_to_thirty_degrees() -> None:
    """A bar through the centre: where its ends come to lie tells the angle that was drawn."""
    x = torch.zeros(200, 1, 33, 33)
    x[:, :, 16, :] = 1
    angles = math.radians(30) * (2 * torch.rand(200, generator=rng()) - 1)
    y = apply("rotate", x)
    assert torch.allclose(y, augment.warp(x, augment._rotation(angles)), atol=1e-5)
    rows = torch.arange(33.0)
    height = 16 - (y[:, 0, :, 28] * rows[None]).sum(1) / y[:, 0, :, 28].sum(1)  # above the centre, 12 to its right
    assert torch.allclose(height / 12, angles.tan(), atol=0.08)
    assert float(angles.min()) < -0.4
    assert float(angles.max()) > 0.4


# Colour


def test_colour_changes_by_hand() -> None:
    x = torch.tensor([[0.2, 0.4, 0.6], [0.8, 0.0, 0.4]]).T.reshape(1, 3, 1, 2)
    luma = [0.299 * 0.2 + 0.587 * 0.4 + 0.114 * 0.6, 0.299 * 0.8 + 0.114 * 0.4]
    factor = torch.tensor([1.5])
    mean = sum(luma) / 2
    brighter = [[0.3, 0.6, 0.9], [1.0, 0.0, 0.6]]
    contrasted = [[mean + 1.5 * (v - mean) for v in pixel] for pixel in ([0.2, 0.4, 0.6], [0.8, 0.0, 0.4])]
    saturated = [
        [grey + 1.5 * (v - grey) for v in pixel]
        for grey, pixel in zip(luma, ([0.2, 0.4, 0.6], [0.8, 0.0, 0.4]), strict=True)
    ]

    def pixels(y: Tensor) -> Tensor:
        return y.reshape(3, 2).T

    assert torch.allclose(pixels(augment.brightness(x, factor)), torch.tensor(brighter), atol=1e-6)
    assert torch.allclose(pixels(augment.contrast(x, factor)), torch.tensor(contrasted).clamp(0, 1), atol=1e-6)
    assert torch.allclose(pixels(augment.saturation(x, factor)), torch.tensor(saturated).clamp(0, 1), atol=1e-6)
    assert torch.allclose(augment.grey_of(x).flatten(), torch.tensor(luma), atol=1e-6)


@pytest.mark.parametrize("turn", [-0.5, -0.1, 0.0, 0.07, 0.4])
def test_hue_against_colorsys(turn: float) -> None:
    x = images(1, 3, 5, 5)
    x[0, :, 0, 0] = 0.3
    x[0, :, 0, 1] = torch.tensor([0.5, 0.5, 0.1])
    expected = x.clone()
    for row in range(5):
        for column in range(5):
            h, s, v = colorsys.rgb_to_hsv(*x[0, :, row, column].tolist())
            expected[0, :, row, column] = torch.tensor(colorsys.hsv_to_rgb((h + turn) % 1, s, v))
    assert torch.allclose(augment.hue(x, torch.tensor([turn])), expected, atol=1e-5)


@pytest.mark.parametrize(("name", "strength", "most"), [("jitter", 0.4, 0.1), ("strong-jitter", 0.8, 0.2)])
def test_jitter_is_its_four_changes_in_order_for_the_chosen(name: str, strength: float, most: float) -> None:
    x = images(40)
    y = ATOMS[name](x, rng(3))
    draws = rng(3)
    bright, contrasted, saturated = (1 + strength * (2 * torch.rand(40, generator=draws) - 1) for _ in range(3))
    turn = most * (2 * torch.rand(40, generator=draws) - 1)
    chosen = torch.rand(40, generator=draws) < 0.8
    for i in range(40):
        expected = x[i]
        if chosen[i]:
            expected = (expected * bright[i]).clamp(0, 1)
            mean = (expected * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(0).mean()
            expected = (mean + contrasted[i] * (expected - mean)).clamp(0, 1)
            luma = (expected * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(0)
            expected = (luma + saturated[i] * (expected - luma)).clamp(0, 1)
            expected = augment.hue(expected[None], turn[i : i + 1])[0]
        assert torch.allclose(y[i], expected, atol=1e-5)
    assert 0 < int(chosen.sum()) < 40


def test_grey_takes_about_a_fifth() -> None:
    x = images(500, 3, 2, 2)
    y = apply("grey", x)
    changed = (y != x).flatten(1).any(dim=1)
    assert 70 < int(changed.sum()) < 130
    assert torch.allclose(y[changed], augment.grey_of(x)[changed].expand(-1, 3, -1, -1))


# Against Pillow, which works on whole levels


@pytest.mark.parametrize("factor", [0.7, 1.0, 1.3])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (augment.brightness, ImageEnhance.Brightness),
        (augment.contrast, ImageEnhance.Contrast),
        (augment.saturation, ImageEnhance.Color),
        (augment.sharpness, ImageEnhance.Sharpness),
    ],
)
def test_enhancements_against_pillow(ours: object, theirs: object, factor: float) -> None:
    x = stored()
    got = ours(x, torch.full((len(x),), factor))  # type: ignore[operator]
    expected = by_pillow(x, lambda image: theirs(image).enhance(factor))  # type: ignore[operator]
    assert (got - expected).abs().max() < 1.6 / 255


def test_tones_against_pillow() -> None:
    x = stored()
    assert torch.allclose(augment.equalise(x), by_pillow(x, ImageOps.equalize), atol=1e-6)
    assert torch.allclose(augment.posterise(x, 3), by_pillow(x, lambda i: ImageOps.posterize(i, 3)), atol=1e-6)
    assert torch.allclose(augment.solarise(x, 128 / 255), by_pillow(x, lambda i: ImageOps.solarize(i, 128)), atol=1e-6)
    assert (augment.autocontrast(x) - by_pillow(x, ImageOps.autocontrast)).abs().max() < 1.1 / 255


def test_equalise_on_large_images_spreads_the_levels() -> None:
    x = stored(1, 1, 96) * 0.5
    y = augment.equalise(x)
    assert not torch.equal(x, y)
    assert torch.allclose(y, by_pillow_grey(x), atol=1e-6)


def by_pillow_grey(x: Tensor) -> Tensor:
    pixels = (x[0, 0].numpy() * 255).round().astype(np.uint8)
    return torch.from_numpy(np.asarray(ImageOps.equalize(Image.fromarray(pixels))).copy())[None, None].float() / 255


def test_flat_images_stay_as_they_are() -> None:
    x = torch.full((2, 3, 20, 20), 0.4)
    assert torch.equal(augment.equalise(x), x)
    assert torch.equal(augment.autocontrast(x), x)


# RandAugment


@pytest.mark.parametrize("name", [name for name in augment.OPERATIONS if name != "identity"])
def test_every_operation_changes_and_its_sign_counts_where_it_has_one(name: str) -> None:
    operation = augment.OPERATIONS[name]
    x = stored(2)
    signed = torch.tensor([1.0, -1.0]) / 3
    up, down = operation(x, signed), operation(x, -signed)
    assert not torch.allclose(up, x)
    without_sign = {"autocontrast", "equalise", "solarise", "posterise"}
    assert torch.allclose(up, down) == (name in without_sign)


def test_operations_at_magnitude_ten() -> None:
    x = torch.tensor([0.0, 0.5, 0.66, 0.67, 1.0]).view(1, 1, 1, 5)
    third = torch.tensor([1 / 3])
    assert augment.OPERATIONS["solarise"](x, third).flatten().tolist() == pytest.approx(
        [0, 0.5, 0.66, 0.33, 0], abs=1e-6
    )
    levels = torch.tensor([100.0, 101.0, 103.0]).view(1, 1, 1, 3) / 255
    assert (augment.OPERATIONS["posterise"](levels, third) * 255).flatten().tolist() == pytest.approx([100, 100, 102])
    assert augment.OPERATIONS["brightness"](x, third).flatten()[1] == pytest.approx(0.65)


def test_randaugment_applies_the_operations_drawn() -> None:
    x = images(30)
    y = augment.randaugment(x, rng(2))
    draws = rng(2)
    operations = torch.randint(14, (2, 30), generator=draws)
    signs = torch.randint(2, (2, 30), generator=draws) * 2 - 1
    listed = list(augment.OPERATIONS.values())
    assert len(listed) == 14
    for i in range(30):
        expected = x[i : i + 1]
        for step in range(2):
            expected = listed[operations[step, i]](expected, signs[step, i : i + 1] / 3)
        assert torch.allclose(y[i], expected[0], atol=1e-5)


def test_randaugment_of_nothing_is_nothing() -> None:
    x = images()
    assert torch.equal(augment.randaugment(x, rng(), count=0), x)
