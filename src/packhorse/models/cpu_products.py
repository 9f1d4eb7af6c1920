"""Dense layers on the CPU: oneDNN, with weights laid out once as its kernels read them.

PyTorch's own ``linear`` copies a weight into blocks at every call. oneDNN's
operators that take weights in blocks are those that ``torch.compile`` emits
for frozen models: ``mkldnn::_linear_pointwise``, which also adds or activates
while the result is still in registers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from packhorse.kernels.reference import ACTIVATIONS

TYPICAL_ROWS = 1024
"""Rows that the layout of a weight is chosen for; any other number works too."""

FUSED = {"gelu": ("gelu", "none"), "relu": ("relu", "")}
"""Activations that the operator computes itself: its name and algorithm ("none" is erf)."""


def can_prepack(dtype: torch.dtype) -> bool:
    """Whether this build of PyTorch and this processor have the operators for a type."""
    return (
        dtype in (torch.float32, torch.bfloat16)
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )


def prepacked(weight: Tensor) -> Tensor:
    """A weight (F, D) in blocks: opaque, but of the same shape."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), TYPICAL_ROWS)
    return packed


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b: (rows, D) to (rows, F), of a weight in blocks or not."""
    if not weight.is_mkldnn:
        return F.linear(x, weight, bias)
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y


def linear_activation(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """activation(x W^T + b)."""
    if not weight.is_mkldnn or activation not in FUSED:
        return ACTIVATIONS[activation](linear(x, weight, bias))
    name, algorithm = FUSED[activation]
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, name, [], algorithm)
    return y


def linear_add(x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor) -> Tensor:
    """x W^T + b + other, with other (rows, F)."""
    if not weight.is_mkldnn:
        return F.linear(x, weight, bias).add_(other)
    y: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, weight, bias, "add")
    return y
