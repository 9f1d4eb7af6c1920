"""What a family's checkpoint calls the parts of an encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

CONFIGURED = "configured"
"""The activation of a head's layer that the config names."""

LayerKeys = Callable[[int, Mapping[str, Any]], Mapping[str, int]]
"""From a layer's number and the config to what fills the braces of its names."""


def numbered(layer: int, config: Mapping[str, Any]) -> Mapping[str, int]:
    """Most families number their layers: ``{i}``."""
    return {"i": layer}


@dataclass(frozen=True, slots=True)
class MaskedLmNames:
    """What a family calls the head of its masked language model; the defaults are BERT's.

    dense, norm   from the hidden size to that of the embeddings, then LayerNorm
    activation    between them; None: that of the feed-forwards
    decoder       gives the logits; without a weight of its own it is the table of embeddings
    bias          of the logits, where the decoder has none; None: there is no other name for it
    """

    dense: str = "cls.predictions.transform.dense"
    norm: str = "cls.predictions.transform.LayerNorm"
    activation: str | None = None
    decoder: str = "cls.predictions.decoder"
    bias: str | None = "cls.predictions.bias"


@dataclass(frozen=True, slots=True)
class Names:
    """Names without the family's prefix and without ".weight" and ".bias"; None: has no such part.

    The defaults are BERT's, those of Transformers' ``BertForSequenceClassification``.

    projection     dense layer from the embedding size to the hidden size; where they are equal it
                   is there only if ``always_projected``
    extra_table    a table whose row 0 is added to every token, if the config's key says so
    relative_bias  table (buckets, heads) that is added to the scores by distance
    layer_keys     what fills the braces; layers whose names come out equal share their weights
    head           dense layers after the trunk with their activations; the last gives the logits
    token_head     the same of a token classifier, after the hidden state of each token
    qkv            one layer for queries, keys and values, in place of three
    final_norm     LayerNorm after the last layer: the family is pre-norm, and its ``mlp_in`` gated
    first_norm     whether the first layer has an ``attention_norm``
    biases         a dense layer's or a norm's role to the config's key that says if it has a bias;
                   roles are attention, mlp, norm and head; one that is not there always has
    head_norm      LayerNorm after the head's first layer
    masked_lm      the head of the masked language model; ``modern_masked_lm`` where the config says
                   that it is not the "legacy" one
    position_table, position_norm, position_key, position_query  of DeBERTa's relative positions
    """

    word: str = "embeddings.word_embeddings"
    position: str | None = "embeddings.position_embeddings"
    token_type: str | None = "embeddings.token_type_embeddings"
    extra_table: tuple[str, str, str] | None = None
    embedding_norm: str = "embeddings.LayerNorm"
    projection: str | None = None
    always_projected: bool = False
    relative_bias: tuple[str, str] | None = None
    query: str = "encoder.layer.{i}.attention.self.query"
    key: str = "encoder.layer.{i}.attention.self.key"
    value: str = "encoder.layer.{i}.attention.self.value"
    attention_output: str = "encoder.layer.{i}.attention.output.dense"
    attention_norm: str = "encoder.layer.{i}.attention.output.LayerNorm"
    mlp_in: str = "encoder.layer.{i}.intermediate.dense"
    mlp_out: str = "encoder.layer.{i}.output.dense"
    mlp_norm: str = "encoder.layer.{i}.output.LayerNorm"
    layer_keys: LayerKeys = numbered
    head: tuple[tuple[str, str | None], ...] = (("pooler.dense", "tanh"), ("classifier", None))
    token_head: tuple[tuple[str, str | None], ...] = (("classifier", None),)
    qkv: str | None = None
    final_norm: str | None = None
    first_norm: bool = True
    biases: Mapping[str, str] = field(default_factory=dict)
    head_norm: str | None = None
    masked_lm: MaskedLmNames = MaskedLmNames()
    modern_masked_lm: MaskedLmNames | None = None
    position_table: str = "encoder.rel_embeddings"
    position_norm: str = "encoder.LayerNorm"
    position_key: str = "encoder.layer.{i}.attention.self.pos_key_proj"
    position_query: str = "encoder.layer.{i}.attention.self.pos_query_proj"
