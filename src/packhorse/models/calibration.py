"""How far the inputs of dense layers reach, and a model of 8 bits made from that.

The texts are made up: ids drawn evenly from the vocabulary, with the special tokens
of a text around them. On the demo model and on all-MiniLM-L6-v2 they give levels as
good as real texts do (docs/log.md), need no tokenizer, and are the same every time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from packhorse.checkpoint import Architecture
from packhorse.models.backend import Dense
from packhorse.models.cpu_backend import CpuBackend
from packhorse.models.encoder import EncoderLayer, PackedEncoder
from packhorse.models.int8 import Extent, extent_of, quantised
from packhorse.models.int8_backend import Int8Backend
from packhorse.request import Sequences, bounds_of

LENGTHS = (8, 16, 32, 64, 128)
"""Tokens of the made-up texts."""

TEXTS_A_LENGTH = 16

Forward = Callable[[PackedEncoder, Sequences], object]
"""Runs a batch, sorted by length."""


class Observer(CpuBackend):
    """Notes how far the inputs of each dense layer reach."""

    def __init__(self) -> None:
        super().__init__(prepack=False)
        self.extents: dict[int, Extent] = {}

    def _note(self, x: Tensor, layer: Dense) -> None:
        extent, known = extent_of(x), self.extents.get(id(layer))
        self.extents[id(layer)] = extent if known is None else known.united(extent)

    def linear(self, x: Tensor, layer: Dense) -> Tensor:
        self._note(x, layer)
        return super().linear(x, layer)

    def linear_activation(self, x: Tensor, layer: Dense, activation: str) -> Tensor:
        self._note(x, layer)
        return super().linear_activation(x, layer, activation)

    def linear_add(self, x: Tensor, layer: Dense, other: Tensor) -> Tensor:
        self._note(x, layer)
        return super().linear_add(x, layer, other)


def made_up_texts(architecture: Architecture, vocabulary: int) -> Sequences:
    """Ids drawn evenly, sorted by length; the same for the same model."""
    random = np.random.default_rng(0)
    longest = architecture.max_positions
    lengths = np.repeat([min(length, longest) for length in LENGTHS], TEXTS_A_LENGTH)
    lengths = lengths.astype(np.int32)
    ids = random.integers(0, vocabulary, int(lengths.sum()), dtype=np.int32)
    ids[ids == architecture.pad_token_id] = (architecture.pad_token_id + 1) % vocabulary
    return Sequences(ids, bounds_of(lengths), np.zeros(len(lengths), np.bool_))


def in_8_bits(
    exact: PackedEncoder,
    served: PackedEncoder,
    texts: Sequences,
    forward: Forward,
    most_weight: int,
) -> PackedEncoder:
    """``served`` with the dense layers that all tokens pass in 8 bits, made from ``exact``.

    exact   the model in float32, its weights not packed
    served  the same in the type of all that stays wide: norms, attention, the head
    """
    observer = Observer()
    with torch.inference_mode():
        forward(replace(exact, backend=observer), texts)
        made: dict[int, Dense] = {}  # layers may share weights
        layers = tuple(
            _layer_in_8_bits(a, b, observer.extents, most_weight, made)
            for a, b in zip(exact.layers, served.layers, strict=True)
        )
    return replace(served, layers=layers, backend=Int8Backend())


def _layer_in_8_bits(
    exact: EncoderLayer,
    served: EncoderLayer,
    extents: dict[int, Extent],
    most_weight: int,
    made: dict[int, Dense],
) -> EncoderLayer:
    """A last layer of first tokens keeps wide what only they pass: few rows, and the last ones."""
    names = {field.name for field in fields(exact)}
    if exact.query is not None:
        names = {"key_value"}
    changed: dict[str, Any] = {}
    for name in sorted(names):
        layer = getattr(exact, name)
        if not isinstance(layer, Dense) or id(layer) not in extents:
            continue
        if id(layer) not in made:
            made[id(layer)] = quantised(
                layer, extents[id(layer)], most_weight, even=name != "mlp_out"
            )
        changed[name] = made[id(layer)]
    return replace(served, **changed)
