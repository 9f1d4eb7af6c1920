"""What turns a sequence's first hidden state into logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from packhorse.kernels.reference import ACTIVATIONS


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

    def logits(self, first_hidden_states: Tensor) -> Tensor:
        """float32 (N, labels) from the first token's hidden states (N, D)."""
        x = first_hidden_states.float()
        for layer in self.layers:
            x = F.linear(x, layer.weight, layer.bias)
            if layer.activation is not None:
                x = ACTIVATIONS[layer.activation](x)
        return x
