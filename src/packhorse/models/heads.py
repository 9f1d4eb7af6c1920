"""What turns a sequence's first hidden state into logits."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class HeadLayer:
    """A dense layer in float32, weight (out, in) and bias (out,), then an activation or none."""

    weight: Tensor
    bias: Tensor
    activation: str | None


@dataclass(frozen=True, slots=True)
class ClassificationHead:
    """Dense layers one after the other: families differ only in names and activations.

    It runs in float32 whatever the trunk's type: it reads one row a sequence,
    so exactness costs nothing there.
    """

    layers: tuple[HeadLayer, ...]

    @property
    def num_labels(self) -> int:
        return self.layers[-1].weight.shape[0]
