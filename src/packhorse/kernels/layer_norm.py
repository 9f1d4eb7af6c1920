"""LayerNorm, with the addition that comes before it in the same pass.

    y = (h - mean(h)) / sqrt(var(h) + eps) * gamma + beta,    h = x [+ bias + residual]

Ba, Kiros & Hinton 2016, arXiv:1607.06450. Sums are float32 whatever the type.
Bytes moved: (2 or 3) x rows x D x itemsize, each element read and written once;
mean and variance are taken from registers, in two passes, so that a large mean
costs no digits of the variance.
"""

# ruff: noqa: N803 - what is fixed at compile time is in capitals, as in Triton's own code
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from packhorse.kernels import tiles
from packhorse.kernels.overlap import follow


def layer_norm(
    x: Tensor, gamma: Tensor, beta: Tensor, eps: float, out: Tensor | None = None
) -> Tensor:
    """LayerNorm(x) over the last axis of x (rows, D); ``out`` may be x."""
    return _launch(x, None, None, gamma, beta, eps, out)


def residual_layer_norm(
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor,
    gamma: Tensor,
    beta: Tensor,
    eps: float,
    out: Tensor | None = None,
) -> Tensor:
    """LayerNorm(x + bias + residual), all (rows, D), bias (D,); ``out`` may be x or residual."""
    return _launch(x, bias, residual, gamma, beta, eps, out)


def add_layer_norm(
    x: Tensor,
    residual: Tensor,
    gamma: Tensor,
    beta: Tensor,
    eps: float,
    out: Tensor | None = None,
) -> Tensor:
    """residual += x, in place; then LayerNorm(residual): all (rows, D); ``out`` may be x."""
    return _launch(x, None, residual, gamma, beta, eps, out, keep=True)


def _launch(
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    eps: float,
    out: Tensor | None,
    keep: bool = False,
) -> Tensor:
    rows, hidden = x.shape
    if out is None:
        out = torch.empty((rows, hidden), dtype=x.dtype, device=x.device)
    tile = tiles.normalised_rows(triton.next_power_of_2(hidden))
    overlap = tiles.overlaps(x.device)
    _layer_norm[(triton.cdiv(rows, tile.rows),)](
        x,
        bias,
        residual,
        gamma,
        beta,
        out,
        rows,
        x.stride(0),
        0 if residual is None else residual.stride(0),
        out.stride(0),
        eps,
        HIDDEN=hidden,
        ROWS=tile.rows,
        BLOCK=tile.columns,
        KEEP=keep,
        OVERLAP=overlap,
        num_warps=tile.num_warps,
        launch_pdl=overlap,
    )
    return out


@triton.jit
def normalise(h, gamma, beta, eps, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    """The rows of float32 h (ROWS, BLOCK), which is 0 from column HIDDEN on, normalised."""
    columns = tl.arange(0, BLOCK)
    inside = (columns < HIDDEN) | (HIDDEN == BLOCK)
    mean = tl.sum(h, 1) / HIDDEN
    centred = tl.where(inside[None, :], h - mean[:, None], 0.0)
    variance = tl.sum(centred * centred, 1) / HIDDEN
    scale = tl.load(gamma + columns, inside, 0.0).to(tl.float32)
    shift = tl.load(beta + columns, inside, 0.0).to(tl.float32)
    return centred * tl.rsqrt(variance + eps)[:, None] * scale[None, :] + shift[None, :]


@triton.jit(do_not_specialize=["num_rows"])
def _layer_norm(
    x, bias, residual, gamma, beta, out, num_rows, x_stride, residual_stride, out_stride, eps,
    HIDDEN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, KEEP: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    follow(OVERLAP)
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    inside = (columns < HIDDEN) | (HIDDEN == BLOCK)
    # Rows past the last compute the last again and are not stored: loads need no row mask.
    source = tl.minimum(rows, num_rows - 1)[:, None]
    h = tl.load(x + source * x_stride + columns[None, :], inside[None, :], 0.0).to(tl.float32)
    if residual is not None:
        place = residual + source * residual_stride + columns[None, :]
        h += tl.load(place, inside[None, :], 0.0).to(tl.float32)
    if bias is not None:
        h += tl.load(bias + columns, inside, 0.0).to(tl.float32)[None, :]
    if KEEP:
        sums = residual + rows[:, None] * residual_stride + columns[None, :]
        present = (rows < num_rows)[:, None] & inside[None, :]
        tl.store(sums, h.to(residual.dtype.element_ty), present)
    y = normalise(h, gamma, beta, eps, HIDDEN, BLOCK).to(out.dtype.element_ty)
    target = out + rows[:, None] * out_stride + columns[None, :]
    tl.store(target, y, (rows < num_rows)[:, None] & inside[None, :])
