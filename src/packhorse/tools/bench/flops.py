"""How much arithmetic a set of texts needs, and how much of it a program does.

Counted are matrix products alone, 2 m n k for (m, k) by (k, n), as Kaplan et
al. (Scaling Laws, 2020, table 1) and PyTorch's FlopCounterMode count them;
embedding, LayerNorm, softmax, biases and activations are left out. D is the
hidden size, F the intermediate size, C the number of labels. A layer over one
row of n tokens:

    q, k, v, output   2 n 4 D²
    mlp               2 n 2 D F
    QKᵀ and PV        4 n² D

and the head of a text 2 D² + 2 D C.

``nominal`` counts the whole model over the real tokens, whoever computes it:
rungs are compared by it. What a program executes (padding included, rows that
nobody reads left out) is counted by the other functions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packhorse.checkpoint import Checkpoint
from packhorse.request import Int32Array


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What the counts depend on."""

    layers: int
    hidden: int
    intermediate: int
    labels: int

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> ModelSize:
        shape = checkpoint.architecture
        return cls(
            shape.num_layers, shape.hidden_size, shape.intermediate_size, len(checkpoint.labels)
        )

    @property
    def dense(self) -> int:
        """FLOPs of one layer's dense products for one token: 8 D² + 4 D F."""
        return 8 * self.hidden**2 + 4 * self.hidden * self.intermediate

    @property
    def head(self) -> int:
        """FLOPs of the head for one text: 2 D² + 2 D C."""
        return 2 * self.hidden**2 + 2 * self.hidden * self.labels

    @property
    def parameters_in_products(self) -> int:
        """Weights that matrix products read: layers (4 D² + 2 D F) + D² + D C."""
        return self.layers * self.dense // 2 + self.head // 2


def nominal(size: ModelSize, lengths: Int32Array) -> int:
    """The whole model over the real tokens of texts of these lengths."""
    return size.layers * layer(size, lengths) + size.head * len(lengths)


def layer(size: ModelSize, lengths: Int32Array) -> int:
    """One whole layer over rows of these lengths: (8 D² + 4 D F) Σn + 4 D Σn²."""
    n = lengths.astype(np.int64)
    return int(size.dense * n.sum() + 4 * size.hidden * (n * n).sum())


def padded(size: ModelSize, rows: int, width: int) -> int:
    """``rows`` texts padded to ``width`` tokens: masked keys are multiplied like any other."""
    return nominal(size, np.full(rows, width, np.int32))


def first_token_layer(size: ModelSize, lengths: Int32Array, rows: int | None = None) -> int:
    """A last layer that computes what the first tokens need.

    K and V of every token, 4 D² Σn; the query, both attention products, the
    output and the mlp of N rows: N (4 D² + 4 D F) + 4 D Σn. ``rows`` stands in
    for N where a captured graph computes more rows than there are texts.
    """
    hidden = size.hidden
    tokens = int(lengths.sum(dtype=np.int64))
    rows = len(lengths) if rows is None else rows
    of_rows = rows * (4 * hidden**2 + 4 * hidden * size.intermediate)
    return (4 * hidden**2 + 4 * hidden) * tokens + of_rows


def packed(
    size: ModelSize,
    lengths: Int32Array,
    *,
    first_token_only: bool,
    tokens: int | None = None,
    rows: int | None = None,
) -> int:
    """One packed batch, in a captured graph of ``tokens`` tokens and ``rows`` texts if given.

    A graph's spare tokens are sequences of length 1. The keys that a tile of
    the attention kernel multiplies and masks are not counted: for texts of 25
    tokens all of attention is n / (6 D), half a percent of bert-base.
    """
    rows = len(lengths) if rows is None else rows
    spare = 0 if tokens is None else tokens - int(lengths.sum(dtype=np.int64))
    in_trunk = np.concatenate([lengths, np.ones(spare, np.int32)])
    whole = size.layers - 1 if first_token_only else size.layers
    flops = whole * layer(size, in_trunk) + size.head * rows
    if first_token_only:
        flops += first_token_layer(size, in_trunk, rows)
    return flops
