"""What turns hidden states into logits or vectors: pooling, then layers in float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from packhorse.models.backend import Backend, Layout
from packhorse.sentence import Pooling


@dataclass(frozen=True, slots=True)
class HeadLayer:
    """A dense layer in float32, weight (out, in) and bias (out,), then an activation or none."""

    weight: Tensor
    bias: Tensor
    activation: str | None


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """LayerNorm in float32: gamma and beta (width,), eps added to the variance."""

    gamma: Tensor
    beta: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class Normalize:
    """Each row to length 1; a row of zeros stays one."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """The first ``width`` numbers of each row."""

    width: int


HeadStep = HeadLayer | HeadNorm | Normalize | Truncate


@dataclass(frozen=True, slots=True)
class Head:
    """Pooling, then steps: families and tasks differ only in which.

    It runs in float32 whatever the trunk's type: mostly it reads one row a
    sequence, so exactness costs nothing there.

    width    columns of the output
    pooling  how the hidden states of a sequence become one (``kernels.reference.pooled_block``);
             results of several modes lie side by side; empty: each token has a row of its own;
             marked: that of the token which the sequence marks is read
    """

    pooling: tuple[Pooling | Literal["marked"], ...]
    steps: tuple[HeadStep, ...]
    width: int

    is_sparse = False

    @property
    def is_token_level(self) -> bool:
        """Whether the output has a row for each token, and not for each sequence."""
        return not self.pooling

    @property
    def reads_marked_token(self) -> bool:
        """Whether nothing else of a sequence is read than the token that it marks."""
        return self.pooling == ("marked",)

    @property
    def reads_first_token(self) -> bool:
        """Whether nothing else of a sequence is read."""
        return self.pooling == ("cls",)

    def output(
        self, x: Tensor, layout: Layout, backend: Backend, out: Tensor | None = None
    ) -> Tensor:
        """float32 (N, width), or (T, width) at the token level.

        ``x`` are the hidden states (T, D), or those of first tokens (N, D) if it reads no others.
        """
        if self.pooling and not self.reads_first_token:
            pooled = [backend.pool(x, layout, mode) for mode in self.pooling]
            x = pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=1)
        if not self.steps:
            return x.float() if out is None else out.copy_(x)
        for step in self.steps:
            x = stepped(x, step, backend, out if step is self.steps[-1] else None)
        return x


def stepped(x: Tensor, step: HeadStep, backend: Backend, out: Tensor | None = None) -> Tensor:
    """One step of a head: float32 rows from rows of any type."""
    if isinstance(step, HeadLayer):
        return backend.head_layer(x, step.weight, step.bias, step.activation, out=out)
    if isinstance(step, HeadNorm):
        y = F.layer_norm(x.float(), (x.shape[1],), step.gamma, step.beta, step.eps)
    elif isinstance(step, Truncate):
        y = x[:, : step.width].float().contiguous()
    else:
        y = F.normalize(x.float(), dim=1)
    return y if out is None else out.copy_(y)
