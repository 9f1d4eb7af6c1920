"""DistilBERT: no segments, other names, and a pre-classifier with ReLU."""

from __future__ import annotations

from packhorse.models.names import MaskedLmNames, Names

DISTILBERT = Names(
    token_type=None,
    query="transformer.layer.{i}.attention.q_lin",
    key="transformer.layer.{i}.attention.k_lin",
    value="transformer.layer.{i}.attention.v_lin",
    attention_output="transformer.layer.{i}.attention.out_lin",
    attention_norm="transformer.layer.{i}.sa_layer_norm",
    mlp_in="transformer.layer.{i}.ffn.lin1",
    mlp_out="transformer.layer.{i}.ffn.lin2",
    mlp_norm="transformer.layer.{i}.output_layer_norm",
    head=(("pre_classifier", "relu"), ("classifier", None)),
    masked_lm=MaskedLmNames(
        dense="vocab_transform", norm="vocab_layer_norm", decoder="vocab_projector", bias=None
    ),
)
