"""A gated feed-forward's first half: two products of one input, one of them activated.

    y = activation(x A^T + a) * (x B^T + b)

Shazeer 2020, arXiv:2002.05202 (GEGLU where the activation is GELU). A and B lie
one below the other in one weight (2 F, D), as checkpoints have them.
"""

# ruff: noqa: N803 - what is fixed at compile time is in capitals, as in Triton's own code
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from packhorse.kernels import few_rows, tiles
from packhorse.kernels.activation import KINDS, activate
from packhorse.kernels.overlap import follow
from packhorse.kernels.wide_product import fits_copy_engine, launch


def gate(x: Tensor, activation: str, out: Tensor | None = None) -> Tensor:
    """activation(a) * b for x (rows, 2 F) = [a b]: (rows, F), float32 inside.

    Bytes moved: 3 rows F x itemsize.
    """
    rows, width = x.shape[0], x.shape[1] // 2
    if out is None:
        out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    tile = tiles.BIAS_ACTIVATION
    block = min(tile.columns, triton.next_power_of_2(width))
    overlap = tiles.overlaps(x.device)
    _gate[(rows * triton.cdiv(width, block),)](
        x,
        out,
        x.stride(0),
        out.stride(0),
        KIND=KINDS[activation],
        WIDTH=width,
        BLOCK=block,
        OVERLAP=overlap,
        num_warps=tile.num_warps,
        launch_pdl=overlap,
    )
    return out


def linear_gated(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, out: Tensor | None = None
) -> Tensor:
    """activation(a) * b for [a b] = x weight^T + bias: x (rows, D), weight (2 F, D) to (rows, F).

    Operations: 4 rows D F. Bytes moved: (rows D + 2 F D + rows F) x itemsize; a
    pass of its own over the wide product would move 5 rows F x itemsize more.
    """
    rows, width = x.shape[0], weight.shape[0] // 2
    generation = tiles.generation(x.device)
    tile = None
    if rows > tiles.FEW_GATED_ROWS and bias is None:
        tile = tiles.linear_gated(x.dtype, rows, width, generation)
    if tile is None or not (fits_copy_engine(x) and fits_copy_engine(weight)):
        return gate(few_rows.linear(x, weight, bias), activation, out=out)
    if out is None:
        out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    programs = triton.cdiv(rows, tile.rows) * triton.cdiv(width, tile.columns)
    stride = out.stride(0)
    launch(
        _linear_gated, programs, tile, x, weight, out,
        width=width, stride=stride, activation=activation,
    )  # fmt: skip
    return out


@triton.jit
def _gate(
    x, out, x_stride, out_stride,
    KIND: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    across: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // across).to(tl.int64)
    columns = (tl.program_id(0) % across) * BLOCK + tl.arange(0, BLOCK)
    inside = (columns < WIDTH) | (WIDTH % BLOCK == 0)
    a = tl.load(x + row * x_stride + columns, inside, 0.0).to(tl.float32)
    b = tl.load(x + row * x_stride + WIDTH + columns, inside, 0.0).to(tl.float32)
    y = activate(a, KIND, x.dtype.element_ty == tl.float32) * b
    tl.store(out + row * out_stride + columns, y.to(out.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["num_rows"])
def _linear_gated(
    x, weight, out, num_rows, out_stride,
    KIND: tl.constexpr, WIDTH: tl.constexpr, HIDDEN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    # Programs in flight form a block of tiles, as in ``mlp._linear_activation``.
    across: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    first = tl.program_id(0) // (GROUP * across) * GROUP
    height = tl.minimum(tl.cdiv(num_rows, ROWS) - first, GROUP)
    place = tl.program_id(0) % (GROUP * across)
    row = (first + place % height) * ROWS
    column = place // height * COLUMNS

    a = tl.zeros([ROWS, COLUMNS], tl.float32)
    b = tl.zeros([ROWS, COLUMNS], tl.float32)
    for k in range(0, HIDDEN, DEPTH):  # the copy engine fills zeros past the edges
        part = x.load([row, k])
        a = tl.dot(part, weight.load([column, k]).T, a)
        b = tl.dot(part, weight.load([WIDTH + column, k]).T, b)

    columns = column + tl.arange(0, COLUMNS)
    inside = (columns < WIDTH) | (WIDTH % COLUMNS == 0)
    y = (activate(a, KIND, False) * b).to(out.dtype.element_ty)
    rows = row.to(tl.int64) + tl.arange(0, ROWS)
    target = out + rows[:, None] * out_stride + columns[None, :]
    tl.store(target, y, (rows < num_rows)[:, None] & inside[None, :])
