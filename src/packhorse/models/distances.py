"""How far apart two tokens are, as attention reads it: biases, buckets, angles."""

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


def log_buckets(max_positions: int, span: int, buckets: int, max_distance: int) -> Tensor:
    """The row of DeBERTa's table for each distance from 1 - L to L - 1: int32 (2 L - 1,).

    Half of ``buckets`` are distances of their own, the others logarithmic up to
    ``max_distance``; without any, every distance has a row of its 2 ``span``.
    Computed as Transformers' ``make_log_bucket_position``, in float32 (He et al.
    2020, arXiv:2006.03654, and the buckets of its second version).
    """
    distances = torch.arange(1 - max_positions, max_positions)
    if buckets > 0:
        middle = buckets // 2
        size = torch.where(distances.abs() < middle, middle - 1, distances.abs())
        steps = torch.log(size / middle) / torch.log(torch.tensor((max_distance - 1) / middle))
        far = torch.ceil(steps * (middle - 1)) + middle
        distances = torch.where(size <= middle, distances.float(), far * distances.sign()).long()
    return (distances + span).clamp(0, 2 * span - 1).int()


def rotation_tables(theta: float, max_positions: int, head_size: int) -> tuple[Tensor, Tensor]:
    """cos and sin of position times angle: float32 (L, Dh/2) each, angle d being theta^(-2 d / Dh).

    Su et al. 2021, arXiv:2104.09864, computed as Transformers' "default" type.
    """
    steps = torch.arange(0, head_size, 2).float() / head_size
    angles = torch.arange(max_positions).float()[:, None] * (1.0 / theta**steps)
    return angles.cos(), angles.sin()
