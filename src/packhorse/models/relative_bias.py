"""A bias on attention scores that depends on how far apart two tokens are."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def bias_by_distance(table: Tensor, max_positions: int) -> Tensor:
    """What is added to the score of a query and a key, by head and distance.

    table  float32 (buckets, heads), the learned biases

    Returns float32 (heads, 2 L - 1) for L = ``max_positions``: column
    ``key - query + L - 1`` holds the bias of that distance.
    """
    distances = torch.arange(1 - max_positions, max_positions, device=table.device)
    return table[buckets_of(distances, table.shape[0])].t().contiguous()


def buckets_of(distances: Tensor, num_buckets: int, max_distance: int = 128) -> Tensor:
    """The bucket of each distance (key minus query), int64: half of them for each direction.

    Small distances have a bucket each, larger ones share buckets that grow
    logarithmically up to ``max_distance`` (Raffel et al. 2020, arXiv:1910.10683,
    section 2.1; computed as Transformers' MPNet does).
    """
    half = num_buckets // 2
    exact = half // 2
    size = distances.abs()
    scaled = torch.log(size.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    logarithmic = (exact + (scaled * (half - exact)).long()).clamp(max=half - 1)
    return (distances > 0).long() * half + torch.where(size < exact, size, logarithmic)
