"""The operations of a packed encoder: Triton kernels, or the same in plain PyTorch.

``select`` says which of the two a device runs. Every operation exists twice
under one name and signature: fused in the module of its kind, and as its twin
in ``reference``, which is the oracle, the documentation and the path of older GPUs.
Importing this package imports no Triton.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from packhorse.kernels import reference

logger = logging.getLogger(__name__)

OLDEST_CAPABILITY = (8, 0)
"""Below it there is no bfloat16 in the matrix units, and nobody checks Triton's code."""


@dataclass(frozen=True, slots=True)
class Ops:
    """One set of operations; the signatures are those of ``reference``."""

    name: str
    reason: str
    expand: Callable[..., tuple[Tensor, ...]]
    embedding_layer_norm: Callable[..., Tensor]
    layer_norm: Callable[..., Tensor]
    residual_layer_norm: Callable[..., Tensor]
    add_layer_norm: Callable[..., Tensor]
    bias_activation: Callable[..., Tensor]
    linear: Callable[..., Tensor]
    linear_activation: Callable[..., Tensor]
    linear_residual_norm: Callable[..., Tensor]
    gate: Callable[..., Tensor]
    linear_gated: Callable[..., Tensor]
    head_layer: Callable[..., Tensor]
    rotate: Callable[..., Tensor]
    position_scores: Callable[..., reference.PositionScores]
    packed_attention: Callable[..., Tensor]
    cls_attention: Callable[..., Tensor]
    first_token_pool: Callable[..., Tensor]
    pool: Callable[..., Tensor]


def select(device: torch.device | str, fused: bool = True) -> Ops:
    """The operations that ``device`` runs; ``fused=False`` switches the kernels off by name."""
    obstacle = _obstacle(torch.device(device)) if fused else "switched off"
    ops = _triton("nothing stands against it") if obstacle is None else _reference(obstacle)
    logger.info("kernels on %s: %s (%s)", device, ops.name, ops.reason)
    return ops


def _obstacle(device: torch.device) -> str | None:
    """Why this device cannot run the Triton kernels; None if it can."""
    if device.type != "cuda":
        return f"no Triton on {device.type}"
    if torch.version.cuda is None:
        return "not an NVIDIA GPU"
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST_CAPABILITY:
        return "compute capability {}.{} is below {}.{}".format(*capability, *OLDEST_CAPABILITY)
    if find_spec("triton") is None:
        return "triton is not installed"
    return None


def _triton(reason: str) -> Ops:
    from packhorse.kernels import (
        attention,
        disentangled,
        embedding,
        few_rows,
        gated,
        head,
        layer_norm,
        layout,
        mlp,
        pooling,
        rotary,
    )

    return Ops(
        name="triton",
        reason=reason,
        expand=layout.expand,
        embedding_layer_norm=embedding.embedding_layer_norm,
        layer_norm=layer_norm.layer_norm,
        residual_layer_norm=layer_norm.residual_layer_norm,
        add_layer_norm=layer_norm.add_layer_norm,
        bias_activation=mlp.bias_activation,
        linear=few_rows.linear,
        linear_activation=mlp.linear_activation,
        linear_residual_norm=few_rows.linear_residual_norm,
        gate=gated.gate,
        linear_gated=gated.linear_gated,
        head_layer=head.head_layer,
        rotate=rotary.rotate,
        position_scores=disentangled.position_scores,
        packed_attention=attention.packed_attention,
        cls_attention=attention.cls_attention,
        first_token_pool=pooling.first_token_pool,
        pool=pooling.pool,
    )


def _reference(reason: str) -> Ops:
    return Ops(
        name="reference",
        reason=reason,
        expand=reference.expand,
        embedding_layer_norm=reference.embedding_layer_norm,
        layer_norm=reference.layer_norm,
        residual_layer_norm=reference.residual_layer_norm,
        add_layer_norm=reference.add_layer_norm,
        bias_activation=reference.bias_activation,
        linear=reference.linear,
        linear_activation=reference.linear_activation,
        linear_residual_norm=reference.linear_residual_norm,
        gate=reference.gate,
        linear_gated=reference.linear_gated,
        head_layer=reference.head_layer,
        rotate=reference.rotate,
        position_scores=reference.position_scores,
        packed_attention=reference.packed_attention,
        cls_attention=reference.cls_attention,
        first_token_pool=reference.first_token_pool,
        pool=reference.pool,
    )
