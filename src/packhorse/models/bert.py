"""BERT: how its checkpoint's names map onto a ``PackedEncoder``.

Names and shapes are those of Transformers' ``BertForSequenceClassification``
without the family's prefix. A family of the same kind is another ``Names``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from packhorse.checkpoint import Architecture, Checkpoint
from packhorse.models.backend import Backend, Dense, EmbeddingTables, Norm
from packhorse.models.encoder import EncoderLayer, PackedEncoder
from packhorse.models.heads import ClassificationHead, HeadLayer
from packhorse.models.weights import load_tensors

Tensors = Mapping[str, Tensor]
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Names:
    """Where a family's checkpoint keeps each part; ``{i}`` is the layer's number.

    head: the dense layers after the trunk with their activations; the last gives the logits.
    """

    word: str = "embeddings.word_embeddings"
    position: str = "embeddings.position_embeddings"
    token_type: str | None = "embeddings.token_type_embeddings"
    embedding_norm: str = "embeddings.LayerNorm"
    query: str = "encoder.layer.{i}.attention.self.query"
    key: str = "encoder.layer.{i}.attention.self.key"
    value: str = "encoder.layer.{i}.attention.self.value"
    attention_output: str = "encoder.layer.{i}.attention.output.dense"
    attention_norm: str = "encoder.layer.{i}.attention.output.LayerNorm"
    mlp_in: str = "encoder.layer.{i}.intermediate.dense"
    mlp_out: str = "encoder.layer.{i}.output.dense"
    mlp_norm: str = "encoder.layer.{i}.output.LayerNorm"
    head: tuple[tuple[str, str | None], ...] = (("pooler.dense", "tanh"), ("classifier", None))


BERT = Names()


def load_bert(
    checkpoint: Checkpoint,
    backend: Backend,
    device: torch.device,
    dtype: torch.dtype,
    *,
    first_token_only: bool = True,
) -> PackedEncoder:
    """The classifier of a BERT checkpoint on ``device``; its trunk in ``dtype``.

    ``first_token_only`` False computes the whole last layer, for comparison.
    Raises CheckpointError naming every missing, unexpected or misshapen tensor.
    """
    return load_encoder(checkpoint, BERT, backend, device, dtype, first_token_only)


def load_encoder(
    checkpoint: Checkpoint,
    names: Names,
    backend: Backend,
    device: torch.device,
    dtype: torch.dtype,
    first_token_only: bool = True,
) -> PackedEncoder:
    """As ``load_bert``, for any family of BERT's kind."""
    shape = checkpoint.architecture
    expected = expected_shapes(shape, names, len(checkpoint.labels))
    tensors = load_tensors(
        checkpoint,
        expected,
        prefix=checkpoint.family.prefix,
        ignorable=checkpoint.family.ignorable,
    )
    build = _Builder(tensors, backend, device, dtype, shape.layer_norm_eps)
    last = shape.num_layers - 1
    return PackedEncoder(
        embeddings=build.embeddings(names),
        layers=tuple(
            build.layer(names, i, split=first_token_only and i == last)
            for i in range(shape.num_layers)
        ),
        head=build.head(names),
        num_heads=shape.num_heads,
        activation=shape.hidden_act,
        backend=backend,
        first_token_only=first_token_only,
    )


def expected_shapes(shape: Architecture, names: Names, num_labels: int) -> Shapes:
    """Every tensor the checkpoint must hold, by its name without the prefix."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    expected: Shapes = {f"{names.word}.weight": (shape.vocab_size, hidden)}
    expected[f"{names.position}.weight"] = (shape.max_position_embeddings, hidden)
    if names.token_type is not None:
        expected[f"{names.token_type}.weight"] = (shape.type_vocab_size, hidden)
    expected |= _norm_shapes(names.embedding_norm, hidden)
    for i in range(shape.num_layers):
        for part in (names.query, names.key, names.value, names.attention_output):
            expected |= _dense_shapes(part.format(i=i), hidden, hidden)
        expected |= _norm_shapes(names.attention_norm.format(i=i), hidden)
        expected |= _dense_shapes(names.mlp_in.format(i=i), inner, hidden)
        expected |= _dense_shapes(names.mlp_out.format(i=i), hidden, inner)
        expected |= _norm_shapes(names.mlp_norm.format(i=i), hidden)
    for name, _ in names.head[:-1]:
        expected |= _dense_shapes(name, hidden, hidden)
    return expected | _dense_shapes(names.head[-1][0], num_labels, hidden)


def _dense_shapes(name: str, rows: int, columns: int) -> Shapes:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def _norm_shapes(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


@dataclass(frozen=True, slots=True)
class _Builder:
    """Turns named tensors into the parts of an encoder, on the device and in the trunk's type."""

    tensors: Tensors
    backend: Backend
    device: torch.device
    dtype: torch.dtype
    eps: float

    def embeddings(self, names: Names) -> EmbeddingTables:
        return EmbeddingTables(
            word=self._trunk(f"{names.word}.weight"),
            position=self._trunk(f"{names.position}.weight"),
            token_type=None
            if names.token_type is None
            else self._trunk(f"{names.token_type}.weight"),
            norm=self._norm(names.embedding_norm),
        )

    def layer(self, names: Names, i: int, *, split: bool) -> EncoderLayer:
        query, key, value = (n.format(i=i) for n in (names.query, names.key, names.value))
        return EncoderLayer(
            qkv=None if split else self._dense(query, key, value),
            query=self._dense(query) if split else None,
            key_value=self._dense(key, value) if split else None,
            attention_output=self._dense(names.attention_output.format(i=i)),
            attention_norm=self._norm(names.attention_norm.format(i=i)),
            mlp_in=self._dense(names.mlp_in.format(i=i)),
            mlp_out=self._dense(names.mlp_out.format(i=i)),
            mlp_norm=self._norm(names.mlp_norm.format(i=i)),
        )

    def head(self, names: Names) -> ClassificationHead:
        return ClassificationHead(
            tuple(
                HeadLayer(
                    self._moved(f"{name}.weight", torch.float32),
                    self._moved(f"{name}.bias", torch.float32),
                    activation,
                )
                for name, activation in names.head
            )
        )

    def _dense(self, *names: str) -> Dense:
        """One dense layer of several, their rows one below the other."""
        return self.backend.pack(
            torch.cat([self._trunk(f"{name}.weight") for name in names]),
            torch.cat([self._trunk(f"{name}.bias") for name in names]),
        )

    def _norm(self, name: str) -> Norm:
        return Norm(self._trunk(f"{name}.weight"), self._trunk(f"{name}.bias"), self.eps)

    def _trunk(self, name: str) -> Tensor:
        return self._moved(name, self.dtype)

    def _moved(self, name: str, dtype: torch.dtype) -> Tensor:
        return self.tensors[name].to(self.device, dtype).contiguous()
