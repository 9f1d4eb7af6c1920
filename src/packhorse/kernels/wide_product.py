"""Launching a dense product and what is fused into it, with Hopper's tensor copy engine."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from packhorse.kernels import tiles
from packhorse.kernels.activation import KINDS


def fits_copy_engine(x: Tensor) -> bool:
    """Whether it can read x: rows that are in one piece and start at multiples of 16 bytes."""
    return x.stride(1) == 1 and x.stride(0) * x.element_size() % 16 == 0 and x.data_ptr() % 16 == 0


def launch(
    kernel: Any,
    programs: int,
    tile: tiles.ProductTile,
    x: Tensor,
    weight: Tensor,
    *rest: Tensor | TensorDescriptor,
    width: int,
    stride: int,
    activation: str,
) -> None:
    """Run ``kernel`` over x (rows, D) and weight (F or 2 F, D), which fit the copy engine.

    rest    what it takes after these: a bias, if any, and where the result (rows, F) goes
    width   F
    stride  elements between two rows of the result
    """
    rows, hidden = x.shape
    overlap = tiles.overlaps(x.device)
    kernel[(programs,)](
        TensorDescriptor.from_tensor(x, [tile.rows, tile.depth]),
        TensorDescriptor.from_tensor(weight, [tile.columns, tile.depth]),
        *rest,
        rows,
        stride,
        KIND=KINDS[activation],
        WIDTH=width,
        HIDDEN=hidden,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        GROUP=tile.group,
        OVERLAP=overlap,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        launch_pdl=overlap,
    )
