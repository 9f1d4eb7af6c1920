"""From tokens to sequences: the first token's hidden state, or the mean of all.

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


def mean_pool(hidden_states: Tensor, cu_seqlens: Tensor, out: Tensor | None = None) -> Tensor:
    """The mean hidden state of each sequence: (T, D) to float32 (N, D).

    Bytes moved: T D x itemsize + 4 N D. One program adds up all tokens of a
    sequence for some columns, in order: the same sum every time.
    """
    count, hidden = cu_seqlens.numel() - 1, hidden_states.shape[1]
    if out is None:
        out = torch.empty((count, hidden), dtype=torch.float32, device=hidden_states.device)
    tile = tiles.MEAN_POOL
    block = min(tile.columns, triton.next_power_of_2(hidden))
    overlap = tiles.overlaps(hidden_states.device)
    _mean_pool[(count, triton.cdiv(hidden, block))](
        hidden_states,
        cu_seqlens,
        out,
        hidden_states.stride(0),
        out.stride(0),
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
def _mean_pool(
    hidden_states, cu_seqlens, out, stride, out_stride,
    HIDDEN: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    sequence = tl.program_id(0)
    first = tl.load(cu_seqlens + sequence)
    last = tl.load(cu_seqlens + sequence + 1)
    block = tl.arange(0, TOKENS)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (columns < HIDDEN) | (HIDDEN % BLOCK == 0)
    within = block[:, None] * stride + columns[None, :]
    total = tl.zeros([BLOCK], tl.float32)
    for n in tl.range(first, last, TOKENS, num_stages=STAGES):
        x = tl.load(
            hidden_states + tl.cast(n, tl.int64) * stride + within,
            (n + block < last)[:, None] & inside[None, :],
            0.0,
        )
        total += tl.sum(x.to(tl.float32), 0)
    mean = total / tl.maximum(last - first, 1)
    tl.store(out + sequence.to(tl.int64) * out_stride + columns, mean, inside)
