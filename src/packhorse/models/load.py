"""From a checkpoint's tensors to a ``PackedEncoder``, for every family that has ``Names``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from packhorse.checkpoint import Checkpoint
from packhorse.errors import CheckpointError
from packhorse.families import OTHER_HEADS
from packhorse.models.albert import ALBERT
from packhorse.models.backend import Backend, Dense, EmbeddingTables, Norm
from packhorse.models.bert import BERT, ERNIE
from packhorse.models.deberta import DEBERTA_V2
from packhorse.models.distilbert import DISTILBERT
from packhorse.models.electra import ELECTRA
from packhorse.models.encoder import EncoderLayer, PackedEncoder
from packhorse.models.expected import (
    expected_shapes,
    extra_table,
    has_position_table,
    has_token_types,
    head_layers,
    is_projected,
    masked_lm_names,
    optional_shapes,
)
from packhorse.models.heads import Head, HeadLayer, HeadNorm, HeadStep
from packhorse.models.masked_lm import SparseHead, vocabulary_blocks
from packhorse.models.modernbert import MODERNBERT
from packhorse.models.mpnet import MPNET
from packhorse.models.names import CONFIGURED, MaskedLmNames, Names
from packhorse.models.relations import Relations
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
    "modernbert": MODERNBERT,
    "deberta-v2": DEBERTA_V2,
}

Tensors = Mapping[str, Tensor]


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
    if not checkpoint.is_packed:
        raise CheckpointError(f"{checkpoint.folder}: there is no packed path for its family")
    names = FAMILY_NAMES[checkpoint.architecture.family]
    tensors = load_tensors(
        checkpoint,
        expected_shapes(checkpoint, names),
        prefix=checkpoint.family.prefix,
        ignorable=checkpoint.family.ignorable
        + (() if checkpoint.task.is_classifier else OTHER_HEADS),
        optional=optional_shapes(checkpoint, names),
    )
    relations = Relations(checkpoint, names, tensors, device, dtype)
    build = _Builder(checkpoint, names, tensors, backend, device, dtype, relations)
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
        pre_norm=names.final_norm is not None,
    )


@dataclass(frozen=True, slots=True)
class _Builder:
    """Turns named tensors into the parts of an encoder, on the device and in the trunk's type."""

    checkpoint: Checkpoint
    names: Names
    tensors: Tensors
    backend: Backend
    device: torch.device
    dtype: torch.dtype
    relations: Relations
    packed: dict[tuple[str, ...], Dense] = field(default_factory=dict)  # layers may share weights

    def embeddings(self) -> EmbeddingTables:
        names = self.names
        token_type = position = None
        if has_position_table(self.checkpoint, names):
            position = self._trunk(f"{names.position}.weight")
        if has_token_types(self.checkpoint, names):
            token_type = self._moved(f"{names.token_type}.weight", torch.float32)
        if extra := extra_table(self.checkpoint, names):
            assert token_type is not None
            token_type = token_type + self._moved(f"{extra[0]}.weight", torch.float32)[0]
        return EmbeddingTables(
            word=self._trunk(f"{names.word}.weight"),
            position=position,
            token_type=None if token_type is None else token_type.to(self.dtype),
            norm=self.norm(names.embedding_norm),
        )

    def layer(self, i: int, *, split: bool) -> EncoderLayer:
        names, keys = self.names, self.names.layer_keys(i, self.checkpoint.config)
        after_attention, after_mlp = self._norms_after(i)
        return EncoderLayer(
            # Embeddings of all tokens may be asked for, besides those of the first ones.
            qkv=self._projections(keys)
            if not split or self.checkpoint.task is Task.EMBED
            else None,
            query=self._projections(keys, 0, 1) if split else None,
            key_value=self._projections(keys, 1, 3) if split else None,
            attention_output=self.dense(names.attention_output.format(**keys)),
            attention_norm=self.norm(after_attention),
            mlp_in=self.dense(names.mlp_in.format(**keys)),
            mlp_out=self.dense(names.mlp_out.format(**keys)),
            mlp_norm=self.norm(after_mlp),
            relation=self.relations.of_layer(i),
        )

    def _norms_after(self, i: int) -> tuple[str, str]:
        """Names of the norms of what attention, and then the feed-forward, are added to.

        Where norms come before, those are the feed-forward's and the next layer's.
        """
        names, config = self.names, self.checkpoint.config
        own = names.layer_keys(i, config)
        if names.final_norm is None:
            return names.attention_norm.format(**own), names.mlp_norm.format(**own)
        following = names.attention_norm.format(**names.layer_keys(i + 1, config))
        is_last = i + 1 == self.checkpoint.architecture.num_layers
        return names.mlp_norm.format(**own), names.final_norm if is_last else following

    def _projections(self, keys: Mapping[str, int], first: int = 0, last: int = 3) -> Dense:
        """From the first to before the last of query, key and value, one below the other."""
        names = self.names
        if names.qkv is None:
            parts = (names.query, names.key, names.value)[first:last]
            return self.dense(*(part.format(**keys) for part in parts))
        name, hidden = names.qkv.format(**keys), self.checkpoint.architecture.hidden_size
        rows = slice(first * hidden, last * hidden)
        bias = self.tensors.get(f"{name}.bias")
        return self.backend.pack(
            self._trunk(f"{name}.weight")[rows],
            None if bias is None else self._trunk(f"{name}.bias")[rows].contiguous(),
        )

    def projection(self) -> Dense | None:
        if not is_projected(self.checkpoint, self.names):
            return None
        return self.dense(str(self.names.projection))

    def head(self) -> Head | SparseHead:
        checkpoint = self.checkpoint
        if checkpoint.task is Task.EMBED_SPARSE:
            return self._sparse_head()
        if checkpoint.task is Task.FILL_MASK:
            return self._masked_lm_head()
        if checkpoint.sentence is not None:
            return sentence_head(checkpoint, checkpoint.sentence, self.device)
        steps: list[HeadStep] = []
        for name, activation in head_layers(checkpoint, self.names):
            steps.append(self._head_layer(name, activation))
            if len(steps) == 1 and f"{self.names.head_norm}.weight" in self.tensors:
                norm = self.norm(str(self.names.head_norm), torch.float32)
                steps.append(HeadNorm(norm.gamma, norm.beta, norm.eps))
        return Head(self._poolings(), tuple(steps), checkpoint.width)

    def _sparse_head(self) -> SparseHead:
        """Raises CheckpointError where the logits have no bias."""
        sentence = self.checkpoint.sentence
        assert sentence is not None
        table, bias = self._vocabulary(self.dtype)
        return SparseHead(
            steps=self._before_vocabulary(),
            vocabulary=vocabulary_blocks(table, bias, self.backend),
            width=self.checkpoint.width,
            twice_log1p=sentence.twice_log1p,
        )

    def _masked_lm_head(self) -> Head:
        """Logits of the marked token alone, in float32: of all tokens they would be a gigabyte.

        Raises CheckpointError where the logits have no bias.
        """
        logits = HeadLayer(*self._vocabulary(torch.float32), None)
        return Head(("marked",), (*self._before_vocabulary(), logits), self.checkpoint.width)

    def _before_vocabulary(self) -> tuple[HeadStep, ...]:
        """From the hidden size to that of the embeddings."""
        names = masked_lm_names(self.checkpoint, self.names)
        activation = names.activation or self.checkpoint.architecture.hidden_act
        norm = self.norm(names.norm, torch.float32)
        dense = self._head_layer(names.dense, activation)
        return dense, HeadNorm(norm.gamma, norm.beta, norm.eps)

    def _vocabulary(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The table that gives logits, (V, E), and their bias (V,)."""
        names = masked_lm_names(self.checkpoint, self.names)
        table = f"{names.decoder}.weight"
        table = table if table in self.tensors else f"{self.names.word}.weight"
        return self._moved(table, dtype), self._vocabulary_bias(names, dtype)

    def _vocabulary_bias(self, names: MaskedLmNames, dtype: torch.dtype) -> Tensor:
        """The bias of the logits: the decoder's, else the one that is tied to it."""
        for name in (f"{names.decoder}.bias", names.bias):
            if name in self.tensors:
                return self._moved(str(name), dtype)
        if names.bias is not None:
            raise CheckpointError(
                f"{self.checkpoint.folder}: there is neither {names.bias} nor "
                f"{names.decoder}.bias among the weights: this is no masked language model"
            )
        return self._bias(names.decoder, self.checkpoint.architecture.vocab_size, dtype)

    def _poolings(self) -> tuple[Pooling, ...]:
        if not self.checkpoint.task.is_classifier:
            return ()
        return ("mean",) if self.checkpoint.architecture.mean_pooled else ("cls",)

    def _head_layer(self, name: str, activation: str | None) -> HeadLayer:
        weight = self._moved(f"{name}.weight", torch.float32)
        if activation == CONFIGURED:
            activation = self.checkpoint.architecture.head_act
        return HeadLayer(weight, self._bias(name, len(weight), torch.float32), activation)

    def dense(self, *names: str) -> Dense:
        """One dense layer of several, their rows one below the other."""
        if names not in self.packed:
            has_bias = f"{names[0]}.bias" in self.tensors
            self.packed[names] = self.backend.pack(
                torch.cat([self._trunk(f"{name}.weight") for name in names]),
                torch.cat([self._trunk(f"{name}.bias") for name in names]) if has_bias else None,
            )
        return self.packed[names]

    def norm(self, name: str, dtype: torch.dtype | None = None) -> Norm:
        """A LayerNorm; in the trunk's type unless another is given."""
        dtype = dtype or self.dtype
        gamma = self._moved(f"{name}.weight", dtype)
        eps = self.checkpoint.architecture.layer_norm_eps
        return Norm(gamma, self._bias(name, len(gamma), dtype), eps)

    def _bias(self, name: str, width: int, dtype: torch.dtype) -> Tensor:
        """A bias, or zeros where there is none."""
        if f"{name}.bias" in self.tensors:
            return self._moved(f"{name}.bias", dtype)
        return torch.zeros(width, dtype=dtype, device=self.device)

    def _trunk(self, name: str) -> Tensor:
        return self._moved(name, self.dtype)

    def _moved(self, name: str, dtype: torch.dtype) -> Tensor:
        # A copy: what is mapped would change, or fault, with its file.
        return self.tensors[name].to(self.device, dtype, copy=True).contiguous()
