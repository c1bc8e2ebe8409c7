"""Crops, flips, units and normalisation against plain loops and hand computation."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmix.data.transforms import Images, OneHot, Plain, Transform, crop_and_flip

Array = np.ndarray[Any, Any]


def by_loop(images: Array, draws: Array, pad: int) -> Array:
    """Pixel by pixel: the window's pixel (i, j), read right to left when flipped, is the image's (i
    + row − pad, …).
    """
    n, channels, height, width = images.shape
    out = np.zeros_like(images)
    for s in range(n):
        row, column, flip = (int(v) for v in draws[s])
        for c in range(channels):
            for i in range(height):
                for j in range(width):
                    across = width - 1 - j if flip else j
                    y, x = i + row - pad, across + column - pad
                    if 0 <= y < height and 0 <= x < width:
                        out[s, c, i, j] = images[s, c, y, x]
    return out


@given(st.data(), st.integers(0, 2**32))
def test_crop_and_flip_is_the_plain_loop(data: st.DataObject, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, channels, height, width = (data.draw(st.integers(1, most)) for most in (4, 3, 5, 6))
    pad = data.draw(st.integers(1, 4))
    images = rng.standard_normal((n, channels, height, width))
    draws = rng.integers(0, [2 * pad + 1, 2 * pad + 1, 2], (n, 3)).astype(np.uint8)
    got = crop_and_flip(torch.from_numpy(images), torch.from_numpy(draws), pad)
    np.testing.assert_array_equal(got.numpy(), by_loop(images, draws, pad))


def test_an_offset_of_pad_leaves_the_image_in_place() -> None:
    images = torch.arange(24.0).reshape(1, 2, 3, 4)
    assert torch.equal(crop_and_flip(images, torch.tensor([[2, 2, 0]]), 2), images)
    mirrored = crop_and_flip(images, torch.tensor([[2, 2, 1]]), 2)
    assert mirrored[0, 0].tolist() == [[3, 2, 1, 0], [7, 6, 5, 4], [11, 10, 9, 8]]


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (
            (0, 1, 0),
            [[0, 0], [1, 2]],
        ),  # the window is one row higher: a row of zeros comes in from above
        ((2, 1, 0), [[3, 4], [0, 0]]),
        ((1, 0, 0), [[0, 1], [0, 3]]),
        ((1, 2, 0), [[2, 0], [4, 0]]),
        ((1, 2, 1), [[0, 2], [0, 4]]),  # cropped, then mirrored
        ((0, 0, 1), [[0, 0], [1, 0]]),
    ],
)
def test_what_comes_in_is_zero(draw: tuple[int, int, int], expected: list[list[int]]) -> None:
    image = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    assert crop_and_flip(image, torch.tensor([draw]), 1)[0, 0].tolist() == expected


def test_each_image_has_its_own_draw() -> None:
    image = torch.tensor([[[1.0, 2.0]]]).expand(3, 1, 1, 2)
    got = crop_and_flip(image, torch.tensor([[1, 1, 0], [1, 1, 1], [0, 1, 0]]), 1)
    assert got[:, 0, 0].tolist() == [[1, 2], [2, 1], [0, 0]]


def test_images_in_units() -> None:
    raw = torch.tensor([[[[0, 51], [102, 255]]]], dtype=torch.uint8)  # (1, H=1, W=2, C=2)
    x = Images((0.0, 0.0), (1.0, 1.0)).units(raw)
    assert x.shape == (1, 2, 1, 2)
    np.testing.assert_allclose(x[0, :, 0].numpy(), [[0, 0.4], [0.2, 1]], rtol=1e-6)
    inverted = Images((0.0, 0.0), (1.0, 1.0), invert=True).units(raw)
    np.testing.assert_allclose(
        inverted[0, :, 0].numpy(), [[1, 0.6], [0.8, 0]], rtol=1e-6, atol=1e-7
    )


def test_images_normalised() -> None:
    """(0.4 − 0.2) / 0.5 = 0.4 in the first channel, (1 − 0.6) / 0.25 = 1.6 in the second; any
    leading shape.
    """
    images = Images((0.2, 0.6), (0.5, 0.25))
    x = torch.tensor([[[0.4]], [[1.0]]]).expand(3, 4, 2, 1, 1)
    got = images.normalise(x)
    assert got.shape == (3, 4, 2, 1, 1)
    np.testing.assert_allclose(got[2, 3, :, 0, 0].numpy(), [0.4, 1.6], rtol=1e-6)


def test_one_hot() -> None:
    x = OneHot(4).units(torch.tensor([[2, 0], [3, 3]], dtype=torch.uint8))
    assert x.tolist() == [[[0, 0, 1, 0], [1, 0, 0, 0]], [[0, 0, 0, 1], [0, 0, 0, 1]]]
    assert x.dtype == torch.float32
    assert torch.equal(OneHot(4).normalise(x), x)


def test_plain_leaves_values_alone() -> None:
    x = np.array([[1.5, -2.0]])
    got = Plain().normalise(Plain().units(torch.from_numpy(x)))
    assert got.dtype == torch.float32
    assert got.tolist() == [[1.5, -2.0]]


@pytest.mark.parametrize(
    "transform", [Images((0.3, 0.7), (0.2, 0.4)), Images((0.3, 0.7), (0.2, 0.4), invert=True)]
)
def test_means_commute_with_normalisation(transform: Transform) -> None:
    """Why means may travel in units: the mean of normalised inputs is the normalised mean."""
    raw = torch.from_numpy(
        np.random.default_rng(0).integers(0, 256, (50, 3, 4, 2)).astype(np.uint8)
    )
    units = transform.units(raw).double()
    np.testing.assert_allclose(
        transform.normalise(units.mean(0)),
        transform.normalise(units).mean(0),
        rtol=1e-9,
        atol=1e-12,
    )
    by_numpy = raw.numpy().transpose(0, 3, 1, 2) / 255.0
    by_numpy = 1 - by_numpy if isinstance(transform, Images) and transform.invert else by_numpy
    expected = (by_numpy.mean(0) - np.array([0.3, 0.7])[:, None, None]) / np.array([0.2, 0.4])[
        :, None, None
    ]
    np.testing.assert_allclose(
        transform.normalise(units.mean(0)).numpy(), expected, rtol=1e-5, atol=1e-6
    )


def test_a_mean_of_texts_gives_the_mean_of_their_embeddings() -> None:
    rng = np.random.default_rng(0)
    raw, table = rng.integers(0, 6, (9, 5)), rng.standard_normal((6, 3))
    mean = OneHot(6).units(torch.from_numpy(raw)).double().mean(0).numpy()
    np.testing.assert_allclose(mean @ table, table[raw].mean(0), rtol=1e-6)


def test_noise_is_standard_once_normalised() -> None:
    """8,000 values per channel: the mean deviates by 1/sqrt(8000) = 0.011, the variance by
    sqrt(2/8000) = 0.016.
    """
    images = Images((0.3, 0.7), (0.2, 0.4))
    noise = images.normalise(images.noise((500, 2, 4, 4), np.random.default_rng(0))).double()
    for channel in noise.movedim(1, 0):
        assert abs(float(channel.mean())) < 5 * 0.0112
        assert abs(float(channel.var()) - 1) < 5 * 0.0158


def test_noise_of_texts_is_text() -> None:
    """Every place holds one letter, and each of five letters comes up in a fifth of 10,000 places
    (deviation 0.004).
    """
    noise = OneHot(5).noise((1000, 10, 5), np.random.default_rng(0))
    assert noise.shape == (1000, 10, 5)
    assert set(noise.flatten().tolist()) == {0.0, 1.0}
    assert bool((noise.sum(-1) == 1).all())
    assert float((noise.mean((0, 1)) - 0.2).abs().max()) < 5 * 0.004
