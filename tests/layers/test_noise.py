from __future__ import annotations

import math

import pytest
import torch

from hvcl.layers.noise import random_signs

WORDS = 20_000


@pytest.fixture(scope="module")
def signs():
    """One 64-bit word per row."""
    torch.manual_seed(0)
    return random_signs(WORDS, 64, torch.empty(0, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 64), (2, 65), (0, 4), (4, 0)])
def test_signs_are_exactly_plus_or_minus_one(shape, dtype):
    signs = random_signs(*shape, torch.empty(0, dtype=dtype))
    assert signs.shape == shape
    assert signs.dtype == dtype
    assert torch.equal(signs.abs(), torch.ones(shape, dtype=dtype))


def test_every_bit_is_fair(signs):
    """64 positions, |z| < 4.5; all of them together |z| < 4."""
    z = signs.mean(0) * math.sqrt(WORDS)
    assert z.abs().max() < 4.5
    assert abs(signs.mean().item()) * math.sqrt(signs.numel()) < 4
    assert z.std() == pytest.approx(1, abs=0.4)  # and no fairer than chance: a counter would be


def test_bits_of_a_word_are_uncorrelated(signs):
    """2016 pairs of positions, |z| < 5."""
    z = signs.T @ signs / math.sqrt(WORDS)
    assert (z - z.diagonal().diag()).abs().max() < 5


@pytest.mark.parametrize("lag", [1, 2, 7, 8, 63, 64, 65, 128])
def test_neighbours_are_uncorrelated(signs, lag):
    """In the order in which they fill a row, across words: |z| < 4.5."""
    flat = signs.flatten()
    assert abs((flat[lag:] * flat[:-lag]).mean().item()) * math.sqrt(len(flat) - lag) < 4.5


def test_three_neighbours_are_uncorrelated(signs):
    """|z| < 4.5: pairs could be fair and triples not."""
    flat = signs.flatten()
    assert abs((flat[2:] * flat[1:-1] * flat[:-2]).mean().item()) * math.sqrt(len(flat)) < 4.5


def test_bytes_take_all_values_evenly(signs):
    """Chi-square over 256 byte values: within 5 standard deviations of its 255 degrees of freedom."""
    bits = (signs > 0).view(-1, 8).long() @ (2 ** torch.arange(8))
    counts = torch.bincount(bits, minlength=256).double()
    expected = len(bits) / 256
    statistic = ((counts - expected) ** 2 / expected).sum().item()
    assert abs(statistic - 255) < 5 * math.sqrt(2 * 255)


def test_the_seed_decides():
    like = torch.empty(0)
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(torch.cat([random_signs(3, 50, like), random_signs(3, 50, like)]))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert not torch.equal(draws[0][:3], draws[0][3:])
