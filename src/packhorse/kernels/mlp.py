"""The activation between an encoder layer's two wide matrix products, bias included.

``linear_activation`` computes it inside the first of them, where that is faster
than the library's product and ``bias_activation``, a pass over its result.
"""

# ruff: noqa: N803 - what is fixed at compile time is in capitals, as in Triton's own code
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from packhorse.kernels import tiles
from packhorse.kernels.activation import KINDS, activate
from packhorse.kernels.few_rows import _product
from packhorse.kernels.overlap import follow
from packhorse.kernels.wide_product import fits_copy_engine, launch


def bias_activation(
    x: Tensor, bias: Tensor | None, activation: str, out: Tensor | None = None
) -> Tensor:
    """activation(x + bias) for x (rows, F) and bias (F,), float32 inside; ``out`` may be x.

    Bytes moved: 2 rows F x itemsize, each element read and written once. For half
    types that leaves about 25 instructions an element before arithmetic and not
    memory sets the pace, fewer than a library erf takes: see ``_gelu``.
    """
    kind = KINDS[activation]
    rows, width = x.shape
    if out is None:
        out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    tile = tiles.BIAS_ACTIVATION
    block = min(tile.columns, triton.next_power_of_2(width))
    overlap = tiles.overlaps(x.device)
    _bias_activation[(triton.cdiv(rows, tile.rows) * triton.cdiv(width, block),)](
        x,
        bias,
        out,
        rows,
        x.stride(0),
        out.stride(0),
        KIND=kind,
        WIDTH=width,
        ROWS=tile.rows,
        BLOCK=block,
        OVERLAP=overlap,
        num_warps=tile.num_warps,
        launch_pdl=overlap,
    )
    return out


def linear_activation(
    x: Tensor, weight: Tensor, bias: Tensor, activation: str, out: Tensor | None = None
) -> Tensor:
    """activation(x weight^T + bias): x (rows, D), weight (F, D), bias (F,) to (rows, F).

    Operations: 2 rows D F. Bytes moved: (rows D + F D + rows F) x itemsize; the
    separate pass would move 2 rows F x itemsize more. The fused product rounds
    once, the library's and the pass twice. Few rows: see ``few_rows``.
    """
    kind = KINDS[activation]
    rows, hidden = x.shape
    width = weight.shape[0]
    few = tiles.few_rows("activation", x.dtype, rows, width, hidden, tiles.generation(x.device))
    if few is not None and x.stride(1) == 1 and weight.is_contiguous():
        return _product(x, weight, bias, kind, few, out)
    tile = tiles.linear_activation(x.dtype, rows, width, tiles.generation(x.device))
    if tile is None or not (fits_copy_engine(x) and fits_copy_engine(weight)):
        h = torch.mm(x, weight.t(), out=out)
        return bias_activation(h, bias, activation, out=h)
    if out is None:
        out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    total = triton.cdiv(rows, tile.rows) * triton.cdiv(width, tile.columns)
    resident = tile.resident and fits_copy_engine(out)
    kernel = _linear_activation_resident if resident else _linear_activation
    programs = min(total, tiles.multiprocessors(x.device)) if resident else total
    target = TensorDescriptor.from_tensor(out, [tile.rows, tile.columns // 2]) if resident else out
    stride = out.stride(0)
    launch(
        kernel, programs, tile, x, weight, bias, target,
        width=width, stride=stride, activation=activation,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["num_rows"])
def _bias_activation(
    x, bias, out, num_rows, x_stride, out_stride,
    KIND: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    across: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    rows = (tl.program_id(0) // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = (tl.program_id(0) % across) * BLOCK + tl.arange(0, BLOCK)
    inside = (columns < WIDTH) | (WIDTH % BLOCK == 0)
    source = tl.minimum(rows, num_rows - 1)[:, None]
    h = tl.load(x + source * x_stride + columns[None, :], inside[None, :], 0.0).to(tl.float32)
    if bias is not None:
        h += tl.load(bias + columns, inside, 0.0).to(tl.float32)[None, :]
    y = activate(h, KIND, x.dtype.element_ty == tl.float32).to(out.dtype.element_ty)
    target = out + rows[:, None] * out_stride + columns[None, :]
    tl.store(target, y, (rows < num_rows)[:, None] & inside[None, :])


@triton.jit
def _corner(
    index, num_rows,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The first row and column of a tile.

    Tiles in flight at one time form a block, GROUP high, which shares its rows and columns in L2.
    """
    across: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    first = index // (GROUP * across) * GROUP
    height = tl.minimum(tl.cdiv(num_rows, ROWS) - first, GROUP)
    place = index % (GROUP * across)
    return (first + place % height) * ROWS, place // height * COLUMNS


@triton.jit
def _biased(h, bias, column, KIND: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """activation(h + bias) of COLUMNS columns from ``column``."""
    columns = column + tl.arange(0, COLUMNS)
    inside = (columns < WIDTH) | (WIDTH % COLUMNS == 0)
    return activate(h + tl.load(bias + columns, inside, 0.0).to(tl.float32)[None, :], KIND, False)


@triton.jit(do_not_specialize=["num_rows"])
def _linear_activation(
    x, weight, bias, out, num_rows, out_stride,
    KIND: tl.constexpr, WIDTH: tl.constexpr, HIDDEN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    row, column = _corner(tl.program_id(0), num_rows, WIDTH, ROWS, COLUMNS, GROUP)
    h = tl.zeros([ROWS, COLUMNS], tl.float32)
    for k in range(0, HIDDEN, DEPTH):  # the copy engine fills zeros past the edges
        h = tl.dot(x.load([row, k]), weight.load([column, k]).T, h)
    y = _biased(h, bias, column, KIND, WIDTH, COLUMNS).to(out.dtype.element_ty)
    rows, columns = row.to(tl.int64) + tl.arange(0, ROWS), column + tl.arange(0, COLUMNS)
    inside = (columns < WIDTH) | (WIDTH % COLUMNS == 0)
    target = out + rows[:, None] * out_stride + columns[None, :]
    tl.store(target, y, (rows < num_rows)[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["num_rows"])
def _linear_activation_resident(
    x, weight, bias, out, num_rows, out_stride,
    KIND: tl.constexpr, WIDTH: tl.constexpr, HIDDEN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """A program for each multiprocessor takes one tile after the other.

    The loads of its next tile are under way while the activation of this one is
    computed; in halves, which need fewer registers.
    """
    follow(OVERLAP)
    half: tl.constexpr = COLUMNS // 2
    total = tl.cdiv(num_rows, ROWS) * ((WIDTH + COLUMNS - 1) // COLUMNS)
    for index in tl.range(tl.program_id(0), total, tl.num_programs(0), flatten=True):
        row, column = _corner(index, num_rows, WIDTH, ROWS, COLUMNS, GROUP)
        h = tl.zeros([ROWS, COLUMNS], tl.float32)
        for k in range(0, HIDDEN, DEPTH):
            h = tl.dot(x.load([row, k]), weight.load([column, k]).T, h)
        left, right = tl.split(tl.permute(tl.reshape(h, [ROWS, 2, half]), [0, 2, 1]))
        y = _biased(left, bias, column, KIND, WIDTH, half)
        out.store([row, column], y.to(out.dtype))
        y = _biased(right, bias, column + half, KIND, WIDTH, half)
        out.store([row, column + half], y.to(out.dtype))
