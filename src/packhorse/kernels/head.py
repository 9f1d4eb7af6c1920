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
    a sequence, from L2 after the first. Many sequences of a half type multiply on the
    tensor cores (``_head_product``), and in float32 by the library's product.
    """
    count, width = x.shape[0], weight.shape[0]
    kind = None if activation is None else KINDS[activation]
    if x.stride(1) == 1 and weight.is_contiguous():
        if count <= tiles.HEAD_MOST_ROWS or width <= tiles.HEAD_MOST_COLUMNS:
            return _by_rows(x, weight, bias, kind, out)
        if x.dtype != torch.float32:
            return _by_tiles(x, weight, bias, kind, out)
    y = F.linear(x.float(), weight, bias)
    y = y if activation is None else ACTIVATIONS[activation](y)
    return y if out is None else out.copy_(y)


def _by_rows(
    x: Tensor, weight: Tensor, bias: Tensor, kind: str | None, out: Tensor | None
) -> Tensor:
    """A program a row and a few columns: few rows, or few columns."""
    count, hidden = x.shape
    width = weight.shape[0]
    if out is None:
        out = torch.empty((count, width), device=x.device)
    tile = tiles.HEAD
    overlap = tiles.overlaps(x.device)
    _head_layer[(triton.cdiv(width, tile.rows) * count,)](
        x,
        weight,
        bias,
        out,
        x.stride(0),
        out.stride(0),
        KIND=kind,
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


def _by_tiles(
    x: Tensor, weight: Tensor, bias: Tensor, kind: str | None, out: Tensor | None
) -> Tensor:
    """Tiles of a product on the tensor cores: many rows of a half type."""
    count, hidden = x.shape
    width = weight.shape[0]
    if out is None:
        out = torch.empty((count, width), device=x.device)
    tile = tiles.HEAD_PRODUCT if count <= 512 else tiles.HEAD_PRODUCT_MANY
    overlap = tiles.overlaps(x.device)
    _head_product[(triton.cdiv(count, tile.rows), triton.cdiv(width, tile.columns))](
        x,
        weight,
        bias,
        out,
        count,
        x.stride(0),
        out.stride(0),
        KIND=kind,
        WIDTH=width,
        HIDDEN=hidden,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        OVERLAP=overlap,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        launch_pdl=overlap,
    )
    return out


@triton.jit
def _head_layer(
    x, weight, bias, out, x_stride, out_stride,
    KIND: tl.constexpr, WIDTH: tl.constexpr, HIDDEN: tl.constexpr,
    COLUMNS: tl.constexpr, BLOCK: tl.constexpr, AHEAD: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    # One dimension: a grid has room for 65,535 rows in the others, and labels of tokens are more.
    across: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    row = (tl.program_id(0) // across).to(tl.int64)
    columns = (tl.program_id(0) % across) * COLUMNS + tl.arange(0, COLUMNS)
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


@triton.jit(do_not_specialize=["num_rows"])
def _head_product(
    x, weight, bias, out, num_rows, x_stride, out_stride,
    KIND: tl.constexpr, WIDTH: tl.constexpr, HIDDEN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """float32's accuracy from three TF32 products: a number is one of TF32 and a remainder."""
    follow(OVERLAP)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    steps = tl.arange(0, DEPTH)
    xs = x + tl.minimum(rows, num_rows - 1).to(tl.int64)[:, None] * x_stride + steps[None, :]
    weights = weight + tl.minimum(columns, WIDTH - 1)[None, :] * HIDDEN + steps[:, None]
    h = tl.zeros([ROWS, COLUMNS], tl.float32)
    for k in range(0, HIDDEN, DEPTH):
        inside = (steps + k < HIDDEN) | (HIDDEN % DEPTH == 0)
        a = tl.load(xs + k, inside[None, :], 0.0).to(tl.float32)
        w = tl.load(weights + k, inside[:, None], 0.0)
        h = tl.dot(a, w, h, input_precision="tf32x3")
    present = columns < WIDTH
    h += tl.load(bias + columns, present, 0.0)[None, :]
    if KIND is not None:
        h = activate(h, KIND, True)
    target = out + rows.to(tl.int64)[:, None] * out_stride + columns[None, :]
    tl.store(target, h, (rows < num_rows)[:, None] & present[None, :])
