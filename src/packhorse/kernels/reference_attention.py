"""Attention in plain PyTorch, and DeBERTa's scores of positions: part of ``reference``."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor


class PositionVectors(NamedTuple):
    """What a layer makes of DeBERTa's table of relative positions (He et al. 2020).

    keys, queries  (B, D), all heads side by side: for c2p and p2c; None where the model has it not
    buckets        int32 (2 L - 1,): entry query - key + L - 1 is the row of that distance; rising
    """

    keys: Tensor | None
    queries: Tensor | None
    buckets: Tensor

    @property
    def rows(self) -> int:
        """B."""
        table = self.queries if self.keys is None else self.keys
        assert table is not None
        return table.shape[0]


class PositionScores(NamedTuple):
    """(T, H, B) each or None: what tokens as queries and as keys give each relative position."""

    by_query: Tensor | None
    by_key: Tensor | None
    buckets: Tensor


def score_tables(
    qkv: Tensor, num_heads: int, vectors: PositionVectors, out: Tensor | None
) -> PositionScores:
    """Room for ``position_scores``: new memory, or the start of flat ``out``."""
    count = (vectors.keys is not None) + (vectors.queries is not None)
    size = count * len(qkv) * num_heads * vectors.rows
    flat = qkv.new_empty(size) if out is None else out[:size]
    tables = list(flat.view(count, len(qkv), num_heads, vectors.rows))
    by_query = tables.pop(0) if vectors.keys is not None else None
    return PositionScores(by_query, tables.pop() if tables else None, vectors.buckets)


def position_scores(
    qkv: Tensor,
    starts: Tensor,
    ends: Tensor,
    num_heads: int,
    vectors: PositionVectors,
    scale: float,
    out: Tensor | None = None,
) -> PositionScores:
    """Scores of each token's query, and of its key, with every relative position: (T, H, B) each.

    qkv, starts, ends  as for ``packed_attention``
    scale              every score is multiplied by it
    out                flat memory for the tables, of qkv's type

    He et al. 2020, arXiv:2006.03654, equation 4: the second and third of its
    terms. The kernel leaves out entries that no pair of a sequence asks for.
    """
    scores = score_tables(qkv, num_heads, vectors, out)
    q, k, _ = qkv.float().view(len(qkv), 3, num_heads, -1).unbind(1)
    for own, positions, table in (
        (q, vectors.keys, scores.by_query),
        (k, vectors.queries, scores.by_key),
    ):
        if positions is not None and table is not None:
            each = positions.float().view(len(positions), num_heads, -1)
            table.copy_(torch.einsum("thd,bhd->thb", own, each) * scale)
    return scores


def packed_attention(
    qkv: Tensor,
    starts: Tensor,
    ends: Tensor,
    num_heads: int,
    score_bias: Tensor | None = None,
    window: int | None = None,
    positions: PositionScores | None = None,
    scale: float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """softmax(q k^T * scale + bias) v within each sequence of the packed row: (T, D).

    qkv           (T, 3 D): queries, keys, values of all heads side by side
    starts, ends  int32 (T,): the bounds of each token's own sequence
    score_bias    float32 (H, 2 L - 1) or None: column key - query + L - 1 is added to the score
                  of a key and a query; no sequence is longer than L
    window        a query sees keys up to this far away, None: all of its sequence
    positions     tables of scores to add: by_query[query, bucket] + by_key[key, bucket] for the
                  bucket of query - key
    scale         None: 1 / sqrt Dh

    The block-diagonal mask is applied to scores *and* values: a key outside a
    row's own bounds contributes exactly nothing, even where its value is
    infinite (0 * inf would be NaN).
    """
    tokens, width = qkv.shape
    head = width // 3 // num_heads
    q, k, v = qkv.float().view(tokens, 3, num_heads, head).permute(1, 2, 0, 3)
    y = torch.empty(num_heads, tokens, head, device=qkv.device)
    scale = 1 / math.sqrt(head) if scale is None else scale
    first = starts[starts == torch.arange(tokens, device=starts.device)].long()
    lengths = ends[first] - first
    for length in lengths.unique().tolist():  # blocks of the diagonal of one size at a time
        block = first[lengths == length, None] + torch.arange(length, device=first.device)
        scores = q[:, block] @ k[:, block].transpose(2, 3) * scale
        if score_bias is not None:
            scores += _bias_of_pairs(score_bias, length)[:, None]
        if positions is not None:
            scores += _position_scores_of_pairs(positions, block)
        if window is not None:
            scores.masked_fill_(_farther(length, window, qkv.device), -math.inf)
        y[:, block] = scores.softmax(-1) @ v[:, block]
    return into(y.transpose(0, 1).reshape(tokens, width // 3).to(qkv.dtype), out)


def cls_attention(
    query: Tensor,
    kv: Tensor,
    cu_seqlens: Tensor,
    num_heads: int,
    score_bias: Tensor | None = None,
    window: int | None = None,
    vectors: PositionVectors | None = None,
    scale: float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Attention of one query a sequence over that sequence's keys: (N, D).

    query       (N, D): of the first token of each sequence
    kv          (T, 2 D): keys and values of all heads side by side
    cu_seqlens  int32 (N+1,)
    score_bias, window, scale  as in ``packed_attention``
    vectors     scores to add: query · keys[bucket] + key · queries[bucket], times scale

    An empty sequence (a repeated bound, the padding of N) gives zeros.
    """
    count, width = query.shape
    head = width // num_heads
    q = query.float().view(count, num_heads, 1, head)
    k, v = kv.float().view(-1, 2, num_heads, head).permute(1, 2, 0, 3)
    y = torch.zeros(count, num_heads, 1, head, device=query.device)
    scale = 1 / math.sqrt(head) if scale is None else scale
    for i, (first, last) in enumerate(pairwise(cu_seqlens.tolist())):
        if window is not None:
            last = min(last, first + window + 1)
        if first < last:
            keys = k[:, first:last]
            scores = q[i] @ keys.transpose(1, 2) * scale
            if score_bias is not None:
                scores += _bias_of_pairs(score_bias, last - first)[:, :1]
            if vectors is not None:
                scores += _position_scores_of_first(vectors, q[i], keys) * scale
            y[i] = scores.softmax(-1) @ v[:, first:last]
    return into(y.reshape(count, width).to(query.dtype), out)


def _bias_of_pairs(score_bias: Tensor, length: int) -> Tensor:
    """(H, length, length): the bias of each query (row) and key (column) of one sequence."""
    places = torch.arange(length, device=score_bias.device)
    return score_bias[:, places - places[:, None] + score_bias.shape[1] // 2]


def _farther(length: int, window: int, device: torch.device) -> Tensor:
    """(length, length): which pairs of one sequence are more than ``window`` apart."""
    places = torch.arange(length, device=device)
    return (places - places[:, None]).abs() > window


def _position_scores_of_pairs(positions: PositionScores, block: Tensor) -> Tensor:
    """(H, count, length, length): what relative positions add for each query (row) and key.

    ``block`` has the tokens of ``count`` sequences, (count, length).
    """
    places = torch.arange(block.shape[1], device=block.device)
    distances = places[:, None] - places + len(positions.buckets) // 2
    buckets = positions.buckets[distances].long()
    total = torch.zeros((), device=buckets.device)
    if positions.by_query is not None:
        own = positions.by_query[block].float().permute(2, 0, 1, 3)
        total = total + own.gather(3, buckets.expand(*own.shape[:2], -1, -1))
    if positions.by_key is not None:
        own = positions.by_key[block].float().permute(2, 0, 1, 3)
        by_key = own.gather(3, buckets.t().expand(*own.shape[:2], -1, -1))
        total = total + by_key.transpose(2, 3)
    return total


def _position_scores_of_first(vectors: PositionVectors, query: Tensor, keys: Tensor) -> Tensor:
    """(H, 1, length): the same of a sequence's first token, (H, 1, Dh), with its keys."""
    heads, length, head = keys.shape
    middle = len(vectors.buckets) // 2
    buckets = vectors.buckets[middle - length + 1 : middle + 1].flip(0).long()
    total = torch.zeros((), device=keys.device)
    if vectors.keys is not None:
        by_place = vectors.keys[buckets].float().view(length, heads, head).transpose(0, 1)
        total = total + query @ by_place.transpose(1, 2)
    if vectors.queries is not None:
        by_place = vectors.queries[buckets].float().view(length, heads, head).transpose(0, 1)
        total = total + (keys * by_place).sum(-1)[:, None]
    return total


def into(result: Tensor, out: Tensor | None) -> Tensor:
    """The result, or ``out`` with it."""
    return result if out is None else out.copy_(result)
