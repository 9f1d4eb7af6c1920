"""What is added to the scores of pairs of tokens, as the CPU's attention takes it: a whole mask.

Pairs are those of one sequence, never of two: q, k are (count, heads, length, Dh)
of neighbours of equal length.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from packhorse.kernels.reference import PositionVectors
from packhorse.models.backend import Relation


def scores_of_pairs(relation: Relation, q: Tensor, k: Tensor) -> Tensor | None:
    """For every query and key, in q's type, to broadcast over (count, heads, length, length)."""
    length, added = q.shape[2], None
    if relation.score_bias is not None:
        middle = relation.score_bias.shape[1] // 2
        added = relation.score_bias[:, _distances(length) + middle].to(q.dtype)
    if relation.positions is not None:
        assert relation.scale is not None
        added = _position_scores(relation.positions, q, k) * relation.scale
    if relation.window is not None and relation.window < length - 1:
        far = _distances(length).abs() > relation.window
        blocked = torch.zeros(length, length, dtype=q.dtype).masked_fill_(far, -math.inf)
        added = blocked if added is None else added + blocked
    return added


def scores_of_first(relation: Relation, q: Tensor, k: Tensor) -> Tensor | None:
    """The same for the first token's query, (count, heads, 1, Dh), and every key."""
    length, added = k.shape[2], None
    if relation.score_bias is not None:
        middle = relation.score_bias.shape[1] // 2
        added = relation.score_bias[:, None, middle : middle + length].to(q.dtype)
    if relation.positions is not None:
        assert relation.scale is not None
        added = _position_scores_of_first(relation.positions, q, k) * relation.scale
    if relation.window is not None and relation.window < length - 1:
        blocked = torch.zeros(1, length, dtype=q.dtype)
        blocked[:, relation.window + 1 :] = -math.inf
        added = blocked if added is None else added + blocked
    return added


def _distances(length: int) -> Tensor:
    """(length, length): key minus query."""
    return torch.arange(length) - torch.arange(length)[:, None]


def _position_scores(vectors: PositionVectors, q: Tensor, k: Tensor) -> Tensor:
    """q · keys[bucket] + k · queries[bucket] of each pair, (count, heads, length, length).

    Only the buckets that a sequence of this length has are multiplied.
    """
    count, heads, length, _ = q.shape
    middle = vectors.buckets.shape[0] // 2
    buckets = vectors.buckets[-_distances(length) + middle].long()
    low, high = int(buckets.min()), int(buckets.max()) + 1
    places = (buckets - low).expand(count, heads, -1, -1)
    total = q.new_zeros(())
    if vectors.keys is not None:
        scores = q @ _by_head(vectors.keys[low:high], heads).transpose(1, 2)
        total = total + scores.gather(3, places)
    if vectors.queries is not None:
        scores = k @ _by_head(vectors.queries[low:high], heads).transpose(1, 2)
        total = total + scores.gather(3, places.transpose(2, 3)).transpose(2, 3)
    return total


def _position_scores_of_first(vectors: PositionVectors, q: Tensor, k: Tensor) -> Tensor:
    """The first row of ``_position_scores``, (count, heads, 1, length)."""
    heads, length = k.shape[1:3]
    middle = vectors.buckets.shape[0] // 2
    buckets = vectors.buckets[middle - length + 1 : middle + 1].flip(0).long()
    total = q.new_zeros(())
    if vectors.keys is not None:
        total = total + q @ _by_head(vectors.keys[buckets], heads).transpose(1, 2)
    if vectors.queries is not None:
        total = total + (k * _by_head(vectors.queries[buckets], heads)).sum(-1)[:, :, None]
    return total


def _by_head(rows: Tensor, heads: int) -> Tensor:
    """(rows, D) as (heads, rows, Dh)."""
    return rows.view(len(rows), heads, -1).transpose(0, 1)
