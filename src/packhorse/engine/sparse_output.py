"""From sparse rows as a model computes them to those that travel: what is not 0, by number."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from packhorse.request import Float32Array, Int32Array

PAIR = 2
"""Columns of what travels: the number of a column and its weight."""

MOST_BYTES = 64 << 20
"""Memory for the rows of a batch, before what is 0 is left out: 549 with BERT's vocabulary."""

LARGEST_WIDTH = 1 << 24
"""The numbers of columns travel as float32, which is exact up to here."""


def most_rows(width: int) -> int:
    """How many rows of so many columns a batch may have."""
    assert width <= LARGEST_WIDTH
    return max(1, MOST_BYTES // (4 * width))


def sparse_rows(rows: Tensor) -> tuple[Float32Array, Int32Array]:
    """What is not 0 in float32 (N, V), row by row; NaN and infinity are not 0.

    Returns pairs of column and value, float32 (R, 2), and how many are of each row, int32 (N,).
    """
    places = rows.nonzero()
    values = rows[places[:, 0], places[:, 1]]
    pairs = torch.stack((places[:, 1].float(), values), dim=1).cpu().numpy()
    counts = np.bincount(places[:, 0].cpu().numpy(), minlength=rows.shape[0])
    return pairs, counts.astype(np.int32)
