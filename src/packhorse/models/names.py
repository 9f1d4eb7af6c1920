"""What a family's checkpoint calls the parts of an encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

LayerKeys = Callable[[int, Mapping[str, Any]], Mapping[str, int]]
"""From a layer's number and the config to what fills the braces of its names."""


def numbered(layer: int, config: Mapping[str, Any]) -> Mapping[str, int]:
    """Most families number their layers: ``{i}``."""
    return {"i": layer}


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
    """

    word: str = "embeddings.word_embeddings"
    position: str = "embeddings.position_embeddings"
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
