"""Attention over the packed row: block-diagonal for all tokens, or for first tokens only.

Both compute softmax(q k^T / sqrt Dh) v within each sequence, the softmax kept
running while keys stream by (Milakov & Gimelshein 2018, arXiv:1805.02867; Dao
2023, arXiv:2307.08691), in base 2 because that is the exponential the hardware
has. Scores, sums and the running output are float32; float32 inputs are
multiplied as float32, never as TF32.
"""

# ruff: noqa: N803 - what is fixed at compile time is in capitals, as in Triton's own code
from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from packhorse.kernels import tiles
from packhorse.kernels.overlap import follow
from packhorse.kernels.reference import PositionScores, PositionVectors

LOG2_E = 1.4426950408889634
# Below every score, yet finite: a row that has seen no key of its own keeps this as its
# maximum, so that exp2(-inf - LOWEST) is 0 where exp2(-inf - -inf) would be NaN.
LOWEST = tl.constexpr(-3.0e38)
LOG2 = tl.constexpr(LOG2_E)


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
    """Attention within each sequence of the packed row: (T, 3 D) to (T, D).

    See ``reference.packed_attention``. A program takes a tile of consecutive
    tokens of one head, whatever sequences they belong to, and the keys from the
    start of the first one's sequence to the end of the last one's; the grid
    depends on T alone.

    Bytes moved: 4 T D x itemsize, plus keys read again by each tile that shares
    their sequence (from L2, for the most part). Operations: 4 Dh a head for each
    pair of a query and a key that its tile visits; with a ``window`` of w those are
    ROWS + 2 w keys at most, however long the sequence is.

    A sequence with an infinity or a NaN among its values can make NaN of all rows
    whose tile (``tiles.attention().rows`` tokens, counted from token 0) holds a
    token of that sequence, because 0 * inf is NaN; the next layer can carry it
    one tile further. A row that is finite is right, so those that are not are all
    that must be computed again. Keys and queries do not spread: a masked score is
    replaced, not multiplied.
    """
    tokens, width = qkv.shape
    hidden = width // 3
    head = hidden // num_heads
    if out is None:
        out = torch.empty((tokens, hidden), dtype=qkv.dtype, device=qkv.device)
    block_head = max(16, triton.next_power_of_2(head))  # the matrix units take no less
    tile = tiles.attention(qkv.dtype, block_head, tiles.generation(qkv.device), tokens)
    overlap = tiles.overlaps(qkv.device)
    scale = 1 / math.sqrt(head) if scale is None else scale
    by_query, by_key, buckets = (None, None, None) if positions is None else positions
    table = by_key if by_query is None else by_query
    _packed_attention[(triton.cdiv(tokens, tile.rows) * num_heads,)](
        qkv,
        starts,
        ends,
        score_bias,
        by_query,
        by_key,
        buckets,
        out,
        tokens,
        qkv.stride(0),
        out.stride(0),
        LOG2_E * scale,
        1 / scale,
        DISTANCES=0 if score_bias is None else score_bias.shape[1],
        WINDOW=window,
        PLACES=0 if buckets is None else buckets.shape[0],
        BUCKETS=0 if table is None else table.shape[2],
        HEADS=num_heads,
        HEAD=head,
        BLOCK_HEAD=block_head,
        ROWS=tile.rows,
        OPEN_KEYS=tile.open_keys,
        OPEN_STAGES=tile.open_stages,
        EDGE_KEYS=tile.edge_keys,
        EDGE_STAGES=tile.edge_stages,
        OVERLAP=overlap,
        num_warps=tile.num_warps,
        launch_pdl=overlap,
    )
    return out


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
    """Attention of each sequence's first token: (N, D) over (T, 2 D) to (N, D).

    See ``reference.cls_attention``. One program a sequence and head; an empty
    sequence (a repeated bound, the padding of N) gives zeros.

    Bytes moved: 2 T D x itemsize, each key and value once.
    """
    count, hidden = query.shape
    head = hidden // num_heads
    if out is None:
        out = torch.empty((count, hidden), dtype=query.dtype, device=query.device)
    tile = tiles.CLS_ATTENTION
    overlap = tiles.overlaps(query.device)
    scale = 1 / math.sqrt(head) if scale is None else scale
    position_keys, position_queries, buckets = (None, None, None) if vectors is None else vectors
    _cls_attention[(count * num_heads,)](
        query,
        kv,
        cu_seqlens,
        score_bias,
        position_keys,
        position_queries,
        buckets,
        out,
        query.stride(0),
        kv.stride(0),
        out.stride(0),
        LOG2_E * scale,
        DISTANCES=0 if score_bias is None else score_bias.shape[1],
        WINDOW=window,
        PLACES=0 if buckets is None else buckets.shape[0],
        HEADS=num_heads,
        HEAD=head,
        BLOCK_HEAD=triton.next_power_of_2(head),
        KEYS=tile.columns,
        STAGES=tile.num_stages,
        OVERLAP=overlap,
        num_warps=tile.num_warps,
        launch_pdl=overlap,
    )
    return out


@triton.jit
def _visit(
    acc, top, total, q, keys, values, stride, scale, first, last, starts, ends,
    rows, first_row, bias, unscale, by_query, by_key, buckets, table_stride,
    DISTANCES: tl.constexpr, PLACES: tl.constexpr, HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr,
    KEYS: tl.constexpr, STAGES: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Keys first .. last-1 folded into the running maximum, sum and output of a tile of rows.

    Without MASKED the keys are whole blocks and every row sees all of them.
    """
    block = tl.arange(0, KEYS)
    dims = tl.arange(0, BLOCK_HEAD)
    real = (dims < HEAD) | (HEAD == BLOCK_HEAD)
    for n in tl.range(first, last, KEYS, num_stages=STAGES):
        columns = n + block
        present = (columns < last) | (not MASKED)
        # int64 for the block, int32 within it: T x 3 D can pass 2^31.
        offset = tl.cast(n, tl.int64) * stride
        k = tl.load(
            keys + offset + (block[None, :] * stride + dims[:, None]),
            present[None, :] & real[:, None],
            0.0,
        )
        scores = tl.dot(q, k, input_precision="ieee")
        if DISTANCES:
            place = columns[None, :] - rows[:, None] + DISTANCES // 2
            place = tl.minimum(tl.maximum(place, 0), DISTANCES - 1)  # foreign keys are masked below
            scores += tl.load(bias + place) * unscale
        if MASKED:
            own = (columns[None, :] >= starts[:, None]) & (columns[None, :] < ends[:, None])
        if PLACES:
            seen = own if MASKED else tl.full([1, 1], True, tl.int1)
            place = rows[:, None] - columns[None, :] + PLACES // 2
            bucket = tl.load(buckets + place, seen, 0)
            if by_query is not None:
                entry = by_query + ((rows - first_row)[:, None] * table_stride + bucket)
                scores += tl.load(entry, seen, 0.0).to(tl.float32) * unscale
            if by_key is not None:
                table = by_key + tl.cast(n, tl.int64) * table_stride
                entry = table + (block[None, :] * table_stride + bucket)
                scores += tl.load(entry, seen, 0.0).to(tl.float32) * unscale
        if MASKED:
            scores = tl.where(own, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1) * scale)
        p = tl.exp2(scores * scale - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        v = tl.load(
            values + offset + (block[:, None] * stride + dims[None, :]),
            present[:, None] & real[None, :],
            0.0,
        )
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        total = total * shrink + tl.sum(p, 1)
        top = new_top
    return acc, top, total


# T is not specialised: it would compile anew where T is odd or 1, in the middle of serving.
@triton.jit(do_not_specialize=["num_tokens"], do_not_specialize_on_alignment=["starts", "ends"])
def _packed_attention(
    qkv, starts, ends, score_bias, by_query, by_key, buckets, out, num_tokens, stride, out_stride,
    scale, unscale, DISTANCES: tl.constexpr, WINDOW: tl.constexpr, PLACES: tl.constexpr,
    BUCKETS: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr,
    ROWS: tl.constexpr, OPEN_KEYS: tl.constexpr, OPEN_STAGES: tl.constexpr,
    EDGE_KEYS: tl.constexpr, EDGE_STAGES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    # Heads of one tile side by side, so that programs in flight read whole rows of qkv.
    head = tl.program_id(0) % HEADS
    first_row = (tl.program_id(0) // HEADS) * ROWS
    rows = first_row + tl.arange(0, ROWS)
    # Rows past the last compute the last again and are not stored.
    source = tl.minimum(rows, num_tokens - 1)
    row_starts = tl.load(starts + source)
    row_ends = tl.load(ends + source)
    last_row = tl.minimum(first_row + ROWS, num_tokens) - 1
    first_key = tl.load(starts + first_row)
    last_key = tl.load(ends + last_row)
    alone = tl.load(starts + last_row) == first_key
    if WINDOW is not None:
        row_starts = tl.maximum(row_starts, source - WINDOW)
        row_ends = tl.minimum(row_ends, source + WINDOW + 1)
        # The keys that some row sees; in a tile whose rows are that near, those that all see.
        first_key = tl.maximum(first_key, first_row - WINDOW)
        alone = alone & (last_row - WINDOW <= first_key) & (last_key <= first_row + WINDOW + 1)
        last_key = tl.minimum(last_key, last_row + WINDOW + 1)

    dims = tl.arange(0, BLOCK_HEAD)
    real = ((dims < HEAD) | (HEAD == BLOCK_HEAD))[None, :]
    queries = qkv + head * HEAD
    q = tl.load(queries + source.to(tl.int64)[:, None] * stride + dims[None, :], real, 0.0)
    keys = queries + HEADS * HEAD
    values = keys + HEADS * HEAD

    acc = tl.zeros([ROWS, BLOCK_HEAD], tl.float32)
    top = tl.full([ROWS], LOWEST, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    # In a tile within one sequence, whole blocks of keys need no mask.
    bias = score_bias
    if DISTANCES:
        bias += head * DISTANCES
    if by_query is not None:
        by_query += head * BUCKETS + tl.cast(first_row, tl.int64) * (HEADS * BUCKETS)
    if by_key is not None:
        by_key += head * BUCKETS
    open_keys = tl.where(alone, (last_key - first_key) // OPEN_KEYS * OPEN_KEYS, 0)
    acc, top, total = _visit(
        acc, top, total, q, keys, values, stride, scale,
        first_key, first_key + open_keys, row_starts, row_ends,
        source, first_row, bias, unscale, by_query, by_key, buckets, HEADS * BUCKETS,
        DISTANCES, PLACES, HEAD, BLOCK_HEAD, OPEN_KEYS, OPEN_STAGES, False,
    )  # fmt: skip
    acc, top, total = _visit(
        acc, top, total, q, keys, values, stride, scale,
        first_key + open_keys, last_key, row_starts, row_ends,
        source, first_row, bias, unscale, by_query, by_key, buckets, HEADS * BUCKETS,
        DISTANCES, PLACES, HEAD, BLOCK_HEAD, EDGE_KEYS, EDGE_STAGES, True,
    )  # fmt: skip
    y = (acc / total[:, None]).to(out.dtype.element_ty)
    target = out + rows.to(tl.int64)[:, None] * out_stride + head * HEAD + dims[None, :]
    tl.store(target, y, (rows < num_tokens)[:, None] & real)


@triton.jit
def _cls_attention(
    query, kv, cu_seqlens, score_bias, position_keys, position_queries, buckets, out,
    query_stride, kv_stride, out_stride, scale,
    DISTANCES: tl.constexpr, WINDOW: tl.constexpr, PLACES: tl.constexpr, HEADS: tl.constexpr,
    HEAD: tl.constexpr, BLOCK_HEAD: tl.constexpr, KEYS: tl.constexpr, STAGES: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    head = tl.program_id(0) % HEADS
    sequence = tl.program_id(0) // HEADS
    first = tl.load(cu_seqlens + sequence)
    last = tl.load(cu_seqlens + sequence + 1)
    if WINDOW is not None:
        last = tl.minimum(last, first + WINDOW + 1)
    dims = tl.arange(0, BLOCK_HEAD)
    real = (dims < HEAD) | (HEAD == BLOCK_HEAD)
    place = head * HEAD + dims
    q = tl.load(query + sequence.to(tl.int64) * query_stride + place, real, 0.0)
    q = q.to(tl.float32) * scale

    block = tl.arange(0, KEYS)
    within = block[:, None] * kv_stride + place[None, :]
    acc = tl.zeros([BLOCK_HEAD], tl.float32)
    top = LOWEST
    total = 0.0
    for n in tl.range(first, last, KEYS, num_stages=STAGES):
        present = n + block < last
        inside = present[:, None] & real[None, :]
        keys = kv + tl.cast(n, tl.int64) * kv_stride
        k = tl.load(keys + within, inside, 0.0).to(tl.float32)
        v = tl.load(keys + HEADS * HEAD + within, inside, 0.0).to(tl.float32)
        scores = tl.sum(k * q[None, :], 1)
        if PLACES:
            bucket = tl.load(buckets + PLACES // 2 + first - n - block, present, 0)
            row = bucket[:, None] * (HEADS * HEAD) + place[None, :]
            if position_keys is not None:
                by_place = tl.load(position_keys + row, inside, 0.0).to(tl.float32)
                scores += tl.sum(by_place * q[None, :], 1)
            if position_queries is not None:
                by_place = tl.load(position_queries + row, inside, 0.0).to(tl.float32)
                scores += tl.sum(by_place * k, 1) * scale
        if DISTANCES:
            distance = DISTANCES // 2 + n - first + block
            scores += tl.load(score_bias + head * DISTANCES + distance, present, 0.0) * LOG2
        scores = tl.where(present, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 0))
        p = tl.exp2(scores - new_top)
        shrink = tl.exp2(top - new_top)
        acc = acc * shrink + tl.sum(p[:, None] * v, 0)
        total = total * shrink + tl.sum(p, 0)
        top = new_top
    y = acc / tl.where(first < last, total, 1.0)
    tl.store(out + sequence.to(tl.int64) * out_stride + place, y.to(out.dtype.element_ty), real)
