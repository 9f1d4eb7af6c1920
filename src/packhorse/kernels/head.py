"""The layers of a head, in float32, for the few sequences of one small batch."""

# ruff: noqa: N803 - what is fixed at compile time is in capitals, as in Triton's own code
from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from packhorse.kernels import tiles
from packhorse.kernels.activation import KINDS, activate
from packhorse.kernels.overlap import follow, prefetch
from packhorse.kernels.reference import ACTIVATIONS


def head_layer(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    activation: str | None,
    out: Tensor | None = None,
) -> Tensor:
    """activation(x weight^T + bias) in float32, or without activation: float32 (N, F).

    x (N, D) in any type, weight (F, D) and bias (F,) float32. Bytes moved: 4 F D
    a sequence, from L2 after the first; the library's product serves more sequences
    than a few. Its launches (widen, product, activation, copy) become one.
    """
    count, hidden = x.shape
    width = weight.shape[0]
    if count > tiles.HEAD_MOST_ROWS or x.stride(1) != 1 or not weight.is_contiguous():
        y = F.linear(x.float(), weight, bias)
        y = y if activation is None else ACTIVATIONS[activation](y)
        return y if out is None else out.copy_(y)
    if out is None:
        out = torch.empty((count, width), device=x.device)
    tile = tiles.HEAD
    overlap = tiles.overlaps(x.device)
    _head_layer[(triton.cdiv(width, tile.rows), count)](
        x,
        weight,
        bias,
        out,
        x.stride(0),
        out.stride(0),
        KIND=None if activation is None else KINDS[activation],
        WIDTH=width,
        HIDDEN=hidden,
        COLUMNS=tile.rows,
        BLOCK=tile.columns,
        AHEAD=overlap and tiles.PREFETCH and hidden % 64 == 0,
        OVERLAP=overlap,
        num_warps=tile.num_warps,
        launch_pdl=overlap,
    )
    return out


@triton.jit
def _head_layer(
    x, weight, bias, out, x_stride, out_stride,
    KIND: tl.constexpr, WIDTH: tl.constexpr, HIDDEN: tl.constexpr,
    COLUMNS: tl.constexpr, BLOCK: tl.constexpr, AHEAD: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1).to(tl.int64)
    weights = weight + tl.minimum(columns, WIDTH - 1)[:, None] * HIDDEN
    if AHEAD:
        pieces: tl.constexpr = triton.next_power_of_2(HIDDEN // 64)
        piece = tl.minimum(tl.arange(0, pieces), HIDDEN // 64 - 1)
        prefetch(weights + piece[None, :] * 64, 256)
    follow(OVERLAP)

    place = tl.arange(0, BLOCK)
    sums = tl.zeros([COLUMNS, BLOCK], tl.float32)
    for k in tl.static_range(0, HIDDEN, BLOCK):
        inside = (place + k < HIDDEN) | (HIDDEN % BLOCK == 0)
        h = tl.load(x + row * x_stride + k + place, inside, 0.0).to(tl.float32)
        sums += tl.load(weights + k + place[None, :], inside[None, :], 0.0) * h[None, :]
    present = columns < WIDTH
    y = tl.sum(sums, 1) + tl.load(bias + columns, present, 0.0)
    if KIND is not None:
        y = activate(y, KIND, True)
    tl.store(out + row * out_stride + columns, y, present)
