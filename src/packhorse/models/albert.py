"""ALBERT: narrow embeddings, and layers that share their weights in groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packhorse.models.names import MaskedLmNames, Names


def shared_keys(layer: int, config: Mapping[str, Any]) -> Mapping[str, int]:
    """The group of layer ``layer``, counted as in AlbertTransformer.forward."""
    groups, layers = config.get("num_hidden_groups", 1), config.get("num_hidden_layers", 12)
    return {"group": int(layer / (layers / groups))}


_LAYER = "encoder.albert_layer_groups.{group}.albert_layers.0."

ALBERT = Names(
    projection="encoder.embedding_hidden_mapping_in",
    always_projected=True,
    query=_LAYER + "attention.query",
    key=_LAYER + "attention.key",
    value=_LAYER + "attention.value",
    attention_output=_LAYER + "attention.dense",
    attention_norm=_LAYER + "attention.LayerNorm",
    mlp_in=_LAYER + "ffn",
    mlp_out=_LAYER + "ffn_output",
    mlp_norm=_LAYER + "full_layer_layer_norm",
    layer_keys=shared_keys,
    head=(("pooler", "tanh"), ("classifier", None)),
    masked_lm=MaskedLmNames(
        dense="predictions.dense",
        norm="predictions.LayerNorm",
        decoder="predictions.decoder",
        bias="predictions.bias",
    ),
)
