"""How much an operation of a backend computes and moves, from the shapes of what it is given.

FLOPs are those of matrix products, as in ``bench.flops``: 2 m n k for (m, k) by
(k, n). Bytes are a floor: every input read once and every output written once,
of an embedding table the rows that are looked up. What stays in a cache costs
less than its bytes say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor

from packhorse.models.backend import Dense, EmbeddingTables, Norm
from packhorse.request import Int32Array

READS_ALL_KEYS, READS_KEYS_ONCE = "attention", "cls_attention"


def flops(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], lengths: Int32Array) -> int:
    """Of one call; ``lengths``, int32 (N,), are the tokens of each sequence.

    Attention: 4 D Σn² where every token asks, 4 D Σn where first tokens do. A
    window or positions of DeBERTa's kind are not counted.
    """
    given = [*args, *kwargs.values()]
    tensors = [value for value in given if isinstance(value, Tensor)]
    rows = tensors[0].shape[0] if tensors else 0
    n = lengths.astype(np.int64)
    if name == READS_ALL_KEYS:
        return 4 * (tensors[0].shape[1] // 3) * int((n * n).sum())
    if name == READS_KEYS_ONCE:
        return 4 * tensors[0].shape[1] * int(n.sum())
    if name == "head_layer":
        return 2 * rows * tensors[1].numel()
    return sum(2 * rows * layer.weight.numel() for layer in given if isinstance(layer, Dense))


def moved_bytes(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Of one call, read and written."""
    given = [*args, *(value for key, value in kwargs.items() if key not in _MEMORY)]
    output = _size(result) if isinstance(result, Tensor) else 0
    if name == "embed":
        tables = next(value for value in given if isinstance(value, EmbeddingTables))
        number = sum(t is not None for t in (tables.word, tables.position, tables.token_type))
        return (number + 1) * output
    between = 0
    if name == "feed_forward":  # the inner activations, written and read again
        first = next(value for value in given if isinstance(value, Dense))
        x = next(value for value in given if isinstance(value, Tensor))
        between = 2 * x.shape[0] * first.weight.shape[0] * x.element_size()
    return sum(map(_size, _tensors(given))) + between + output


_MEMORY = ("out", "inner", "scratch")
"""Arguments that are room for a result."""


def _tensors(values: list[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Dense):
            yield from (part for part in (value.weight, value.bias) if part is not None)
        elif isinstance(value, Norm):
            yield from (value.gamma, value.beta)


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
