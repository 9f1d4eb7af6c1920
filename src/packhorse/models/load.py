"""From a checkpoint's tensors to a ``PackedEncoder``, for every family that has ``Names``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from packhorse.checkpoint import Checkpoint
from packhorse.families import OTHER_HEADS
from packhorse.models.albert import ALBERT
from packhorse.models.backend import Backend, Dense, EmbeddingTables, Norm
from packhorse.models.bert import BERT, ERNIE
from packhorse.models.distilbert import DISTILBERT
from packhorse.models.electra import ELECTRA
from packhorse.models.encoder import EncoderLayer, PackedEncoder
from packhorse.models.heads import Head, HeadLayer
from packhorse.models.mpnet import MPNET
from packhorse.models.names import Names
from packhorse.models.relative_bias import bias_by_distance
from packhorse.models.roberta import ROBERTA
from packhorse.models.sentence_head import sentence_head
from packhorse.models.weights import load_tensors
from packhorse.sentence import Pooling
from packhorse.tasks import Task

FAMILY_NAMES: Mapping[str, Names] = {
    "bert": BERT,
    "ernie": ERNIE,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "electra": ELECTRA,
    "distilbert": DISTILBERT,
    "mpnet": MPNET,
    "albert": ALBERT,
}

Tensors = Mapping[str, Tensor]
Shapes = dict[str, tuple[int, ...]]


def load_encoder(
    checkpoint: Checkpoint,
    backend: Backend,
    device: torch.device,
    dtype: torch.dtype,
    *,
    first_token_only: bool = True,
) -> PackedEncoder:
    """The model of a checkpoint on ``device``; its trunk in ``dtype``.

    ``first_token_only`` False computes the whole last layer, for comparison.
    Raises CheckpointError naming every missing, unexpected or misshapen tensor.
    """
    names = FAMILY_NAMES[checkpoint.architecture.family]
    tensors = load_tensors(
        checkpoint,
        expected_shapes(checkpoint, names),
        prefix=checkpoint.family.prefix,
        ignorable=checkpoint.family.ignorable
        + (() if checkpoint.task.is_classifier else OTHER_HEADS),
    )
    build = _Builder(checkpoint, names, tensors, backend, device, dtype)
    shape = checkpoint.architecture
    last = shape.num_layers - 1
    head = build.head()
    first_token_only = first_token_only and head.reads_first_token
    return PackedEncoder(
        embeddings=build.embeddings(),
        layers=tuple(
            build.layer(i, split=first_token_only and i == last) for i in range(shape.num_layers)
        ),
        head=head,
        num_heads=shape.num_heads,
        activation=shape.hidden_act,
        backend=backend,
        first_token_only=first_token_only,
        projection=build.projection(),
        score_bias=build.score_bias(),
    )


def expected_shapes(checkpoint: Checkpoint, names: Names) -> Shapes:
    """Every tensor the checkpoint must hold, by its name without the prefix."""
    shape, config = checkpoint.architecture, checkpoint.config
    width, hidden, inner = shape.embedding_size, shape.hidden_size, shape.intermediate_size
    expected: Shapes = {
        f"{names.word}.weight": (shape.vocab_size, width),
        f"{names.position}.weight": (shape.max_position_embeddings, width),
    }
    if names.token_type is not None:
        expected[f"{names.token_type}.weight"] = (shape.type_vocab_size, width)
    if extra := _extra_table(checkpoint, names):
        expected[f"{extra[0]}.weight"] = (extra[1], width)
    if names.relative_bias is not None:
        table, buckets = names.relative_bias
        expected[f"{table}.weight"] = (config.get(buckets, 32), shape.num_heads)
    if _is_projected(checkpoint, names):
        expected |= _dense_shapes(str(names.projection), hidden, width)
    expected |= _norm_shapes(names.embedding_norm, width)
    for i in range(shape.num_layers):
        keys = names.layer_keys(i, config)
        for part in (names.query, names.key, names.value, names.attention_output):
            expected |= _dense_shapes(part.format(**keys), hidden, hidden)
        expected |= _norm_shapes(names.attention_norm.format(**keys), hidden)
        expected |= _dense_shapes(names.mlp_in.format(**keys), inner, hidden)
        expected |= _dense_shapes(names.mlp_out.format(**keys), hidden, inner)
        expected |= _norm_shapes(names.mlp_norm.format(**keys), hidden)
    layers = _head_layers(checkpoint, names)
    for name, _ in layers[:-1]:
        expected |= _dense_shapes(name, hidden, hidden)
    if layers:
        expected |= _dense_shapes(layers[-1][0], len(checkpoint.labels), hidden)
    return expected


def _head_layers(checkpoint: Checkpoint, names: Names) -> tuple[tuple[str, str | None], ...]:
    """Names and activations of the checkpoint's own head; none where texts are embedded."""
    if checkpoint.task.is_classifier:
        return names.head
    return names.token_head if checkpoint.task is Task.TOKEN_CLASSIFY else ()


def _extra_table(checkpoint: Checkpoint, names: Names) -> tuple[str, int] | None:
    """Name and rows of the extra table, if the config switches it on."""
    if names.extra_table is None:
        return None
    name, switch, rows = names.extra_table
    return (name, checkpoint.config.get(rows, 3)) if checkpoint.config.get(switch) else None


def _is_projected(checkpoint: Checkpoint, names: Names) -> bool:
    """Whether embeddings pass a dense layer: always, or only where their width is another."""
    shape = checkpoint.architecture
    differs = shape.embedding_size != shape.hidden_size
    return names.projection is not None and (differs or names.always_projected)


def _dense_shapes(name: str, rows: int, columns: int) -> Shapes:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def _norm_shapes(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


@dataclass(frozen=True, slots=True)
class _Builder:
    """Turns named tensors into the parts of an encoder, on the device and in the trunk's type."""

    checkpoint: Checkpoint
    names: Names
    tensors: Tensors
    backend: Backend
    device: torch.device
    dtype: torch.dtype
    packed: dict[tuple[str, ...], Dense] = field(default_factory=dict)  # layers may share weights

    def embeddings(self) -> EmbeddingTables:
        names = self.names
        token_type = None
        if names.token_type is not None:
            token_type = self._moved(f"{names.token_type}.weight", torch.float32)
        if extra := _extra_table(self.checkpoint, names):
            assert token_type is not None
            token_type = token_type + self._moved(f"{extra[0]}.weight", torch.float32)[0]
        return EmbeddingTables(
            word=self._trunk(f"{names.word}.weight"),
            position=self._trunk(f"{names.position}.weight"),
            token_type=None if token_type is None else token_type.to(self.dtype),
            norm=self._norm(names.embedding_norm),
        )

    def layer(self, i: int, *, split: bool) -> EncoderLayer:
        names, keys = self.names, self.names.layer_keys(i, self.checkpoint.config)
        query, key, value = (n.format(**keys) for n in (names.query, names.key, names.value))
        return EncoderLayer(
            # Embeddings of all tokens may be asked for, besides those of the first ones.
            qkv=self.dense(query, key, value)
            if not split or self.checkpoint.task is Task.EMBED
            else None,
            query=self.dense(query) if split else None,
            key_value=self.dense(key, value) if split else None,
            attention_output=self.dense(names.attention_output.format(**keys)),
            attention_norm=self._norm(names.attention_norm.format(**keys)),
            mlp_in=self.dense(names.mlp_in.format(**keys)),
            mlp_out=self.dense(names.mlp_out.format(**keys)),
            mlp_norm=self._norm(names.mlp_norm.format(**keys)),
        )

    def projection(self) -> Dense | None:
        if not _is_projected(self.checkpoint, self.names):
            return None
        return self.dense(str(self.names.projection))

    def head(self) -> Head:
        checkpoint = self.checkpoint
        if checkpoint.sentence is not None:
            return sentence_head(checkpoint, checkpoint.sentence, self.device)
        steps = tuple(
            HeadLayer(
                self._moved(f"{name}.weight", torch.float32),
                self._moved(f"{name}.bias", torch.float32),
                activation,
            )
            for name, activation in _head_layers(checkpoint, self.names)
        )
        poolings: tuple[Pooling, ...] = ("cls",) if checkpoint.task.is_classifier else ()
        return Head(poolings, steps, checkpoint.width)

    def score_bias(self) -> Tensor | None:
        """float32 (heads, 2 L - 1): what is added to a score, by distance, for L positions."""
        if self.names.relative_bias is None:
            return None
        table = self._moved(f"{self.names.relative_bias[0]}.weight", torch.float32)
        return bias_by_distance(table, self.checkpoint.architecture.max_positions)

    def dense(self, *names: str) -> Dense:
        """One dense layer of several, their rows one below the other."""
        if names not in self.packed:
            self.packed[names] = self.backend.pack(
                torch.cat([self._trunk(f"{name}.weight") for name in names]),
                torch.cat([self._trunk(f"{name}.bias") for name in names]),
            )
        return self.packed[names]

    def _norm(self, name: str) -> Norm:
        eps = self.checkpoint.architecture.layer_norm_eps
        return Norm(self._trunk(f"{name}.weight"), self._trunk(f"{name}.bias"), eps)

    def _trunk(self, name: str) -> Tensor:
        return self._moved(name, self.dtype)

    def _moved(self, name: str, dtype: torch.dtype) -> Tensor:
        return self.tensors[name].to(self.device, dtype).contiguous()
