"""From tokens to sequences: the first token's hidden state, or what all of them come to.

An empty sequence (a repeated bound, the padding of N) gives zeros.
"""

# ruff: noqa: N803 - what is fixed at compile time is in capitals, as in Triton's own code
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from packhorse.kernels import tiles
from packhorse.kernels.overlap import follow

MEAN = tl.constexpr(0)
MAX = tl.constexpr(1)
MEAN_SQRT_LEN = tl.constexpr(2)
WEIGHTED_MEAN = tl.constexpr(3)
LAST = tl.constexpr(4)

MODES = {"mean": 0, "max": 1, "mean_sqrt_len": 2, "weighted_mean": 3, "last": 4}


def first_token_pool(
    hidden_states: Tensor, cu_seqlens: Tensor, out: Tensor | None = None
) -> Tensor:
    """The hidden state of each sequence's first token: (T, D) to (N, D).

    Bytes moved: 2 N D x itemsize.
    """
    count, hidden = cu_seqlens.numel() - 1, hidden_states.shape[1]
    if out is None:
        out = torch.empty((count, hidden), dtype=hidden_states.dtype, device=hidden_states.device)
    tile = tiles.GATHER
    block = min(tile.columns, triton.next_power_of_2(hidden))
    overlap = tiles.overlaps(hidden_states.device)
    _first_token_pool[(triton.cdiv(count, tile.rows), triton.cdiv(hidden, block))](
        hidden_states,
        cu_seqlens,
        out,
        count,
        hidden_states.stride(0),
        out.stride(0),
        HIDDEN=hidden,
        ROWS=tile.rows,
        BLOCK=block,
        OVERLAP=overlap,
        num_warps=tile.num_warps,
        launch_pdl=overlap,
    )
    return out


def pool(hidden_states: Tensor, cu_seqlens: Tensor, mode: str, out: Tensor | None = None) -> Tensor:
    """Each sequence's hidden states as one row: (T, D) to float32 (N, D).

    mode: mean, max, mean_sqrt_len, weighted_mean or last, as in ``reference.pooled_block``.
    Bytes moved: T D x itemsize + 4 N D. One program goes through all tokens of a
    sequence for some columns, in order: the same sum every time.
    """
    count, hidden = cu_seqlens.numel() - 1, hidden_states.shape[1]
    if out is None:
        out = torch.empty((count, hidden), dtype=torch.float32, device=hidden_states.device)
    tile = tiles.MEAN_POOL
    block = min(tile.columns, triton.next_power_of_2(hidden))
    overlap = tiles.overlaps(hidden_states.device)
    _pool[(count, triton.cdiv(hidden, block))](
        hidden_states,
        cu_seqlens,
        out,
        hidden_states.stride(0),
        out.stride(0),
        MODE=MODES[mode],
        HIDDEN=hidden,
        TOKENS=tile.rows,
        BLOCK=block,
        STAGES=tile.num_stages,
        OVERLAP=overlap,
        num_warps=tile.num_warps,
        launch_pdl=overlap,
    )
    return out


@triton.jit(do_not_specialize=["count"])
def _first_token_pool(
    hidden_states, cu_seqlens, out, count, stride, out_stride,
    HIDDEN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    sequences = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (sequences < count)[:, None] & (columns < HIDDEN)[None, :]
    source = tl.minimum(sequences, count - 1)
    first = tl.load(cu_seqlens + source)
    filled = first < tl.load(cu_seqlens + source + 1)
    x = tl.load(
        hidden_states + first.to(tl.int64)[:, None] * stride + columns[None, :],
        inside & filled[:, None],
        0.0,
    )
    target = out + sequences.to(tl.int64)[:, None] * out_stride + columns[None, :]
    tl.store(target, x, inside)


@triton.jit
def _pool(
    hidden_states, cu_seqlens, out, stride, out_stride,
    MODE: tl.constexpr, HIDDEN: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    sequence = tl.program_id(0)
    first = tl.load(cu_seqlens + sequence)
    last = tl.load(cu_seqlens + sequence + 1)
    block = tl.arange(0, TOKENS)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (columns < HIDDEN) | (HIDDEN % BLOCK == 0)
    within = block[:, None] * stride + columns[None, :]
    length = tl.maximum(last - first, 1).to(tl.float32)
    total = tl.full([BLOCK], float("-inf") if MODE == MAX else 0.0, tl.float32)
    begin = tl.maximum(last - 1, first) if MODE == LAST else first
    for n in tl.range(begin, last, TOKENS, num_stages=STAGES):
        own = n + block < last
        x = tl.load(
            hidden_states + tl.cast(n, tl.int64) * stride + within,
            own[:, None] & inside[None, :],
            float("-inf") if MODE == MAX else 0.0,
        ).to(tl.float32)
        if MODE == MAX:
            # Not tl.max, which lets a NaN vanish: a row that is not finite must be found.
            total = tl.maximum(total, tl.reduce(x, 0, _larger), propagate_nan=tl.PropagateNan.ALL)
        elif MODE == WEIGHTED_MEAN:
            total += tl.sum(x * (n - first + 1 + block).to(tl.float32)[:, None], 0)
        else:
            total += tl.sum(x, 0)
    if MODE == MEAN:
        total = total / length
    elif MODE == MEAN_SQRT_LEN:
        total = total / tl.sqrt(length)
    elif MODE == WEIGHTED_MEAN:
        total = total / (length * (length + 1) / 2)
    elif MODE == MAX:
        total = tl.where(last > first, total, 0.0)
    tl.store(out + sequence.to(tl.int64) * out_stride + columns, total, inside)


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
