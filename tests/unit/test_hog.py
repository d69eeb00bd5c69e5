"""Histograms of oriented gradients against scikit-image, and against what can be counted by hand."""

import numpy as np
import pytest
from skimage.feature import hog as reference

from fedsieve.base.errors import ConfigError, DataError
from fedsieve.data.features import Hog, Pixels, hog
from fedsieve.data.features.hog import PIXELS_AT_ONCE


def expected(images, orientations=9, cell=8, block=2):
    settings = {"pixels_per_cell": (cell, cell), "cells_per_block": (block, block), "block_norm": "L2-Hys"}
    return np.stack([reference(image, orientations, channel_axis=-1, **settings) for image in images])


def noisy(shape, levels=256, seed=0):
    """Few levels give many gradients of one length in several channels, where the first channel must win."""
    rng = np.random.default_rng(seed)
    return (rng.integers(0, levels, shape) * (255 // (levels - 1))).astype(np.uint8)


@pytest.mark.parametrize("levels", [2, 3, 6, 256])
@pytest.mark.parametrize("shape", [(32, 32, 3), (28, 28, 1), (21, 40, 3), (16, 16, 4)])
def test_equal_to_scikit_image(shape, levels):
    images = noisy((4, *shape), levels)
    found = hog(images)
    assert found.dtype == np.float32
    assert found == pytest.approx(expected(images), abs=1e-5)


@pytest.mark.parametrize("settings", [(8, 8, 2), (4, 6, 1), (7, 5, 3), (1, 4, 2), (12, 3, 2)])
def test_other_settings_too(settings):
    """Eight and four orientations have their borders at the diagonals, which whole numbers often hit."""
    images = noisy((3, 24, 24, 3), levels=4)
    assert hog(images, *settings) == pytest.approx(expected(images, *settings), abs=1e-5)


def test_smooth_images():
    y, x = np.mgrid[:32, :32]
    waves = [127 + 120 * np.sin((x * np.cos(a) + y * np.sin(a)) / 3) for a in np.linspace(0, 3, 8)]
    images = np.stack(waves).astype(np.uint8)[..., None].repeat(3, axis=-1)
    assert hog(images) == pytest.approx(expected(images), abs=1e-5)


def test_one_edge_counted_by_hand():
    """Dark left and bright right: all gradients point right, so only the first direction counts."""
    image = np.zeros((1, 16, 16, 1), np.uint8)
    image[:, :, 8:] = 100
    features = hog(image).reshape(2, 2, 9)
    # Each cell has one column of 8 gradients of length 100: a mean of 12.5, the same in all four cells. Normalised
    # each is 0.5, cut at 0.2, and normalised again 0.5.
    assert features[..., 0] == pytest.approx(np.full((2, 2), 0.5), abs=1e-6)
    assert not features[..., 1:].any()


def test_a_flat_image_has_no_direction():
    assert not hog(np.full((2, 16, 16, 3), 7, np.uint8)).any()


def test_many_images_are_taken_in_several_steps():
    images = noisy((PIXELS_AT_ONCE // 256 + 3, 16, 16, 1))
    together = hog(images)
    assert np.array_equal(together[-5:], hog(images[-5:]))
    assert np.array_equal(together[:2], hog(images[:2]))


def test_no_image_gives_no_row():
    assert hog(np.empty((0, 32, 32, 3), np.uint8)).shape == (0, 324)


@pytest.mark.parametrize(
    ("images", "code"),
    [
        (np.zeros((2, 32, 32, 3), np.float32), "FS302"),
        (np.zeros((2, 32, 32), np.uint8), "FS302"),
        (np.zeros((2, 15, 32, 3), np.uint8), "FS309"),
        (np.zeros((2, 32, 32, 0), np.uint8), "FS309"),
    ],
)
def test_what_cannot_be_used_is_refused(images, code):
    with pytest.raises(DataError, match=code):
        hog(images)


@pytest.mark.parametrize("settings", [{"cell": 0}, {"block": 0}, {"orientations": 0}, {"orientations": 256}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ConfigError, match="FS002"):
        hog(np.zeros((1, 32, 32, 3), np.uint8), **settings)


def test_as_a_map():
    images = noisy((3, 24, 24, 3))
    assert np.array_equal(Hog(cell=6)(images), hog(images, cell=6))
    assert len({Hog().key, Hog(cell=6).key, Hog(block=1).key, Hog(orientations=8).key, Pixels().key}) == 5
    assert Hog().key == Hog().key


def test_pixels_are_scaled_rows():
    images = np.array([[[[0, 255], [51, 102]]]], np.uint8)
    found = Pixels()(images)
    assert found.dtype == np.float32
    assert found == pytest.approx(np.array([[0, 1, 0.2, 0.4]]))
    with pytest.raises(DataError, match="FS302"):
        Pixels()(np.zeros((2, 3), np.float32))
