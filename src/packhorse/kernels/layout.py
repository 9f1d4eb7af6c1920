"""Where each token of the packed row stands, from the bounds of its sequences.

Only ``cu_seqlens`` crosses to the device; what every token needs to know is
computed there. Bytes moved: 12 T written, and log2(N) reads a token that the
cache answers; the time is that of one launch.
"""

# ruff: noqa: N803 - what is fixed at compile time is in capitals, as in Triton's own code
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from packhorse.kernels import tiles
from packhorse.kernels.overlap import follow


def expand(
    cu_seqlens: Tensor,
    num_sequences: Tensor,
    num_tokens: int,
    out: tuple[Tensor, ...] | None = None,
    segment_starts: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Positions, starts, ends [, segments], each int32 (T,); see ``reference.expand``."""
    if out is None:
        columns = 3 if segment_starts is None else 4
        out = tuple(
            torch.empty(num_tokens, dtype=torch.int32, device=cu_seqlens.device)
            for _ in range(columns)
        )
    positions, starts, ends = out[:3]
    tile = tiles.EXPAND
    overlap = tiles.overlaps(cu_seqlens.device)
    _expand[(triton.cdiv(num_tokens, tile.columns),)](
        cu_seqlens,
        num_sequences,
        segment_starts,
        positions,
        starts,
        ends,
        None if segment_starts is None else out[3],
        num_tokens,
        STEPS=_search_steps(cu_seqlens),
        BLOCK=tile.columns,
        OVERLAP=overlap,
        num_warps=tile.num_warps,
        launch_pdl=overlap,
    )
    return out


def _search_steps(cu_seqlens: Tensor) -> int:
    """Halvings that find a token's sequence among all that the buffer can hold."""
    return cu_seqlens.numel().bit_length()


@triton.jit
def _owner(cu_seqlens, count, tokens, STEPS: tl.constexpr):
    """The last i <= count with cu_seqlens[i] <= token; ``count`` means past all sequences."""
    low = tl.zeros_like(tokens)
    high = low + count
    for _ in tl.static_range(STEPS):
        middle = (low + high + 1) // 2
        reached = tl.load(cu_seqlens + middle) <= tokens
        low = tl.where(reached, middle, low)
        high = tl.where(reached, high, middle - 1)
    return low


# T is not specialised: it would compile anew where T is odd or 1, in the middle of serving.
@triton.jit(
    do_not_specialize=["num_tokens"],
    do_not_specialize_on_alignment=[
        "cu_seqlens", "segment_starts", "positions", "starts", "ends", "token_type_ids",
    ],
)  # fmt: skip
def _expand(
    cu_seqlens, num_sequences, segment_starts, positions, starts, ends, token_type_ids, num_tokens,
    STEPS: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    tokens = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    count = tl.load(num_sequences)
    owner = _owner(cu_seqlens, count, tokens, STEPS)
    tail = owner == count
    start = tl.where(tail, tokens, tl.load(cu_seqlens + owner))
    end = tl.where(tail, tokens + 1, tl.load(cu_seqlens + tl.minimum(owner + 1, count)))
    inside = tokens < num_tokens
    tl.store(positions + tokens, tokens - start, inside)
    tl.store(starts + tokens, start, inside)
    tl.store(ends + tokens, end, inside)
    if segment_starts is not None:
        second = (tokens - start >= tl.load(segment_starts + owner, owner < count, 0)) & ~tail
        tl.store(token_type_ids + tokens, second.to(tl.int32), inside)
