"""Dense layers of few rows: one short text, where the weights are all that there is to move.

At 48 rows a product of bert-base reads 1 to 5 MB of weights, under a
microsecond of memory's time, and the library takes 4 to 7. What counts is that
all multiprocessors fetch some of the weights at once and that little else is
in the way. So a program takes few columns, and where the result is
normalised next, only a part of the sum over the inner dimension:

    partial[s] = x[:, part s] weight[:, part s]^T          float32 (S, rows, D)
    y          = LayerNorm(sum_s partial[s] + bias + residual)

The second pass adds the parts in order: the same sum every time. More rows than
``tiles.few_rows`` takes go to the library's product.
"""

# ruff: noqa: N803 - what is fixed at compile time is in capitals, as in Triton's own code
from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from packhorse.kernels import tiles
from packhorse.kernels.activation import activate
from packhorse.kernels.layer_norm import normalise, residual_layer_norm
from packhorse.kernels.overlap import follow, prefetch


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
    """x weight^T + bias: x (rows, D), weight (F, D), bias (F,) or None to (rows, F).

    Bytes moved: (F D + rows D + rows F) x itemsize.
    """
    tile = _tile("linear", x, weight)
    if tile is not None:
        return _product(x, weight, bias, None, tile, out)
    if bias is None:
        return torch.mm(x, weight.t(), out=out)
    if out is None:
        return F.linear(x, weight, bias)
    return torch.addmm(bias, x, weight.t(), out=out)


def linear_residual_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor,
    gamma: Tensor,
    beta: Tensor,
    eps: float,
    out: Tensor | None = None,
) -> Tensor:
    """LayerNorm(x weight^T + bias + residual): x (rows, F), weight (D, F), the rest of width D.

    ``out`` may be residual. Bytes moved: (D F + rows F + 2 rows D) x itemsize, and
    for few rows 8 S rows D of partial sums, which stay in L2.
    """
    tile = _tile("norm", x, weight)
    if tile is None:
        # In its own place, where nothing that is still read lies: no memory besides.
        place = None if out is None or out.data_ptr() == residual.data_ptr() else out
        h = torch.mm(x, weight.t(), out=place)
        target = h if out is None else out
        return residual_layer_norm(h, bias, residual, gamma, beta, eps, out=target)
    rows, hidden = x.shape[0], weight.shape[0]
    if out is None:
        out = torch.empty((rows, hidden), dtype=x.dtype, device=x.device)
    partial = torch.empty((tile.parts, rows, hidden), dtype=torch.float32, device=x.device)
    _launch(x, weight, None, None, tile, partial, partial.stride(0), partial.stride(1))
    overlap = tiles.overlaps(x.device)
    _add_residual_norm[(rows,)](
        partial,
        bias,
        residual,
        gamma,
        beta,
        out,
        partial.stride(0),
        residual.stride(0),
        out.stride(0),
        eps,
        PARTS=tile.parts,
        HIDDEN=hidden,
        BLOCK=triton.next_power_of_2(hidden),
        OVERLAP=overlap,
        num_warps=tiles.ADD_RESIDUAL_NORM_WARPS,
        launch_pdl=overlap,
    )
    return out


def _product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kind: str | None,
    tile: tiles.FewRowsTile,
    out: Tensor | None,
) -> Tensor:
    """activation(x weight^T + bias), for a tile that does not part the sum."""
    if out is None:
        out = torch.empty((x.shape[0], weight.shape[0]), dtype=x.dtype, device=x.device)
    _launch(x, weight, bias, kind, tile, out, 0, out.stride(0))
    return out


def _tile(use: str, x: Tensor, weight: Tensor) -> tiles.FewRowsTile | None:
    if x.stride(1) != 1 or not weight.is_contiguous():
        return None
    width, hidden = weight.shape
    return tiles.few_rows(use, x.dtype, len(x), width, hidden, tiles.generation(x.device))


def _launch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kind: str | None,
    tile: tiles.FewRowsTile,
    out: Tensor,
    part_stride: int,
    out_stride: int,
) -> None:
    rows, hidden = x.shape
    width = weight.shape[0]
    steps = triton.cdiv(triton.cdiv(hidden, tile.depth), tile.parts)
    overlap = tiles.overlaps(x.device)
    part = steps * tile.depth
    # A thread fetches one piece of the weights ahead, if they can be cut into such.
    piece = part * tile.columns * x.element_size() // (32 * tile.num_warps)
    piece = min(512, max(64, triton.next_power_of_2(piece)))
    cut = part * x.element_size() % piece == 0 and hidden % part == 0
    grid = (triton.cdiv(width, tile.columns), tile.parts, triton.cdiv(rows, tile.rows))
    _few_rows[grid](
        x,
        weight,
        bias,
        out,
        rows,
        x.stride(0),
        part_stride,
        out_stride,
        KIND=kind,
        WIDTH=width,
        HIDDEN=hidden,
        PART=part,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        STAGES=tile.num_stages,
        PIECE=piece if overlap and cut and tiles.PREFETCH else 0,
        OVERLAP=overlap,
        num_warps=tile.num_warps,
        launch_pdl=overlap,
    )


@triton.jit
def _prefetch_weights(
    weight, columns, first, HIDDEN: tl.constexpr, PART: tl.constexpr, PIECE: tl.constexpr
):
    """This program's weights into L2, PIECE bytes at a time."""
    size: tl.constexpr = PIECE * 8 // weight.dtype.element_ty.primitive_bitwidth
    pieces: tl.constexpr = triton.next_power_of_2(PART // size)
    piece = tl.minimum(tl.arange(0, pieces), PART // size - 1)
    prefetch(weight + columns[:, None] * HIDDEN + first + piece[None, :] * size, PIECE)


@triton.jit(do_not_specialize=["num_rows", "part_stride"])
def _few_rows(
    x, weight, bias, out, num_rows, x_stride, part_stride, out_stride,
    KIND: tl.constexpr, WIDTH: tl.constexpr, HIDDEN: tl.constexpr, PART: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr,
    PIECE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    first = tl.program_id(1) * PART
    rows = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    # Columns past the last compute the last again, and are not stored; rows past it are zeros. (The
    # last row again for each of them: all programs fetching one line of L2 took a third longer.)
    own = tl.minimum(columns, WIDTH - 1)
    real = (rows < num_rows)[:, None]
    if PIECE > 0:
        _prefetch_weights(weight, own, first, HIDDEN, PART, PIECE)
    follow(OVERLAP)

    place = first + tl.arange(0, DEPTH)
    xs = x + rows[:, None] * x_stride + place[None, :]
    weights = weight + own[:, None] * HIDDEN + place[None, :]
    whole: tl.constexpr = HIDDEN % PART == 0
    h = tl.zeros([ROWS, COLUMNS], tl.float32)
    for k in tl.range(0, PART, DEPTH, num_stages=STAGES):
        inside = ((place + k < HIDDEN) | whole)[None, :]
        a = tl.load(xs + k, inside & real, 0.0)
        b = tl.load(weights + k, inside, 0.0)
        h = tl.dot(a, b.T, h)

    present = (columns < WIDTH) | (WIDTH % COLUMNS == 0)
    if bias is not None:
        h += tl.load(bias + columns, present, 0.0).to(tl.float32)[None, :]
    if KIND is not None:
        h = activate(h, KIND, False)
    target = out + tl.program_id(1).to(tl.int64) * part_stride
    target += rows[:, None] * out_stride + columns[None, :]
    tl.store(target, h.to(out.dtype.element_ty), real & present[None, :])


@triton.jit(do_not_specialize=["part_stride"])
def _add_residual_norm(
    partial, bias, residual, gamma, beta, out, part_stride, residual_stride, out_stride, eps,
    PARTS: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = (columns < HIDDEN) | (HIDDEN == BLOCK)
    h = tl.load(residual + row * residual_stride + columns, inside, 0.0).to(tl.float32)
    if bias is not None:
        h += tl.load(bias + columns, inside, 0.0).to(tl.float32)
    for part in tl.static_range(PARTS):
        h += tl.load(partial + part * part_stride + row * HIDDEN + columns, inside, 0.0)
    y = normalise(h[None, :], gamma, beta, eps, HIDDEN, BLOCK).to(out.dtype.element_ty)
    tl.store(out + row * out_stride + columns[None, :], y, inside[None, :])
