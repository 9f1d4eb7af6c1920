"""How much a token's content makes of each relative position: DeBERTa's tables of scores.

    by_query[t, h, b] = q[t, h] · posK[b, h] * scale
    by_key[t, h, b]   = k[t, h] · posQ[b, h] * scale

He et al. 2020, arXiv:2006.03654, equation 4. Attention reads the entry of each
pair's distance, so no entry is made for a pair; and of a token's row only the
part that its own sequence can ask for is computed and written.
"""

# ruff: noqa: N803 - what is fixed at compile time is in capitals, as in Triton's own code
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from packhorse.kernels import tiles
from packhorse.kernels.overlap import follow
from packhorse.kernels.reference import PositionScores, PositionVectors, score_tables


def position_scores(
    qkv: Tensor,
    starts: Tensor,
    ends: Tensor,
    num_heads: int,
    vectors: PositionVectors,
    scale: float,
    out: Tensor | None = None,
) -> PositionScores:
    """Tables (T, H, B) of a packed row's queries and keys; see ``reference.position_scores``.

    Entries that no pair of a token's sequence asks for are not written.

    Operations: 2 D a table for each token and bucket. Bytes moved: 2 T D x itemsize,
    and each entry once: a tile of tokens of short texts writes one or two blocks.
    """
    tokens = qkv.shape[0]
    scores = score_tables(qkv, num_heads, vectors, out)
    head = qkv.shape[1] // 3 // num_heads
    tile = tiles.POSITION_SCORES if qkv.dtype != torch.float32 else tiles.POSITION_SCORES_FLOAT32
    overlap = tiles.overlaps(qkv.device)
    _position_scores[(triton.cdiv(tokens, tile.rows) * num_heads, 2)](
        qkv,
        starts,
        ends,
        vectors.keys,
        vectors.queries,
        vectors.buckets,
        scores.by_query,
        scores.by_key,
        tokens,
        qkv.stride(0),
        scale,
        PLACES=vectors.buckets.shape[0],
        BUCKETS=vectors.rows,
        HEADS=num_heads,
        HEAD=head,
        BLOCK_HEAD=max(16, triton.next_power_of_2(head)),
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        OVERLAP=overlap,
        num_warps=tile.num_warps,
        launch_pdl=overlap,
    )
    return scores


@triton.jit
def _fill(
    x, positions, table, rows, num_tokens, low, high,
    stride, scale, head, BUCKETS: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr,
    BLOCK_HEAD: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Columns low .. high of some rows of a table, in whole blocks."""
    dims = tl.arange(0, BLOCK_HEAD)
    real = (dims < HEAD) | (HEAD == BLOCK_HEAD)
    source = tl.minimum(rows, num_tokens - 1).to(tl.int64)
    own = tl.load(x + source[:, None] * stride + dims[None, :], real[None, :], 0.0)
    for first in tl.range(low // COLUMNS * COLUMNS, high + 1, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        inside = columns < BUCKETS
        vector = tl.load(
            positions + columns[None, :] * (HEADS * HEAD) + dims[:, None],
            inside[None, :] & real[:, None],
            0.0,
        )
        y = tl.dot(own, vector, input_precision="ieee") * scale
        target = table + (rows.to(tl.int64)[:, None] * HEADS + head) * BUCKETS + columns[None, :]
        present = (rows < num_tokens)[:, None] & inside[None, :]
        tl.store(target, y.to(table.dtype.element_ty), present)


@triton.jit(do_not_specialize=["num_tokens"], do_not_specialize_on_alignment=["starts", "ends"])
def _position_scores(
    qkv, starts, ends, keys, queries, buckets, by_query, by_key, num_tokens, stride, scale,
    PLACES: tl.constexpr, BUCKETS: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr,
    BLOCK_HEAD: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    head = tl.program_id(0) % HEADS
    rows = (tl.program_id(0) // HEADS) * ROWS + tl.arange(0, ROWS)
    source = tl.minimum(rows, num_tokens - 1)
    before = tl.max(source - tl.load(starts + source), 0)
    after = tl.max(tl.load(ends + source) - 1 - source, 0)
    middle: tl.constexpr = PLACES // 2
    if tl.program_id(1) == 0:
        if by_query is not None:  # distances query - key: keys that come after are negative
            low = tl.load(buckets + tl.maximum(middle - after, 0))
            high = tl.load(buckets + tl.minimum(middle + before, PLACES - 1))
            _fill(
                qkv + head * HEAD, keys + head * HEAD, by_query, rows, num_tokens, low, high,
                stride, scale, head, BUCKETS, HEADS, HEAD, BLOCK_HEAD, COLUMNS,
            )  # fmt: skip
    else:
        if by_key is not None:
            low = tl.load(buckets + tl.maximum(middle - before, 0))
            high = tl.load(buckets + tl.minimum(middle + after, PLACES - 1))
            _fill(
                qkv + (HEADS + head) * HEAD, queries + head * HEAD, by_key, rows, num_tokens,
                low, high, stride, scale, head, BUCKETS, HEADS, HEAD, BLOCK_HEAD, COLUMNS,
            )  # fmt: skip
