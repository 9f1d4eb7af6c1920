"""ELECTRA: embeddings of their own width, and GELU where its kin have tanh."""

from __future__ import annotations

from dataclasses import replace

from packhorse.models.bert import BERT
from packhorse.models.names import MaskedLmNames

ELECTRA = replace(
    BERT,
    projection="embeddings_project",
    head=(("classifier.dense", "gelu"), ("classifier.out_proj", None)),
    masked_lm=MaskedLmNames(
        dense="generator_predictions.dense",
        norm="generator_predictions.LayerNorm",
        activation="gelu",
        decoder="generator_lm_head",
        bias=None,
    ),
)
