"""Queries and keys turned by their position, in place.

    y[d]          = x[d] cos(p a_d) - x[d + Dh/2] sin(p a_d)
    y[d + Dh/2]   = x[d + Dh/2] cos(p a_d) + x[d] sin(p a_d),      d < Dh/2

Su et al. 2021, arXiv:2104.09864, in the order of halves that Transformers has.
Bytes moved: 2 x what is turned; the tables of cosines and sines stay in cache.
"""

# ruff: noqa: N803 - what is fixed at compile time is in capitals, as in Triton's own code
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from packhorse.kernels import tiles
from packhorse.kernels.overlap import follow


def rotate(x: Tensor, position_ids: Tensor, cos: Tensor, sin: Tensor, num_heads: int) -> Tensor:
    """Turn the first ``num_heads`` heads of each row of x (T, …) in place; returns x.

    position_ids int32 (T,); cos, sin float32 (L, Dh/2): see ``reference.rotate``.
    """
    half = cos.shape[1]
    tile = tiles.ROTATE
    block = triton.next_power_of_2(half)
    heads = max(1, tile.columns // block)
    overlap = tiles.overlaps(x.device)
    _rotate[(x.shape[0], triton.cdiv(num_heads, heads))](
        x,
        position_ids,
        cos,
        sin,
        x.stride(0),
        HEADS=num_heads,
        HALF=half,
        BLOCK=block,
        TOGETHER=heads,
        OVERLAP=overlap,
        num_warps=tile.num_warps,
        launch_pdl=overlap,
    )
    return x


@triton.jit
def _rotate(
    x, position_ids, cos, sin, stride,
    HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, TOGETHER: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK)
    real = (dims < HALF) | (HALF == BLOCK)
    place = tl.load(position_ids + row) * HALF + dims
    c = tl.load(cos + place, real, 0.0)[None, :]
    s = tl.load(sin + place, real, 0.0)[None, :]
    heads = tl.program_id(1) * TOGETHER + tl.arange(0, TOGETHER)
    inside = (heads < HEADS)[:, None] & real[None, :]
    first = x + row * stride + heads[:, None] * (2 * HALF) + dims[None, :]
    a = tl.load(first, inside, 0.0).to(tl.float32)
    b = tl.load(first + HALF, inside, 0.0).to(tl.float32)
    tl.store(first, (a * c - b * s).to(x.dtype.element_ty), inside)
    tl.store(first + HALF, (b * c + a * s).to(x.dtype.element_ty), inside)
