"""DeBERTa v2 and v3: content and relative positions score each other, apart from the content."""

from __future__ import annotations

from packhorse.models.names import CONFIGURED, MaskedLmNames, Names

DEBERTA_V2 = Names(
    query="encoder.layer.{i}.attention.self.query_proj",
    key="encoder.layer.{i}.attention.self.key_proj",
    value="encoder.layer.{i}.attention.self.value_proj",
    head=(("pooler.dense", CONFIGURED), ("classifier", None)),
    modern_masked_lm=MaskedLmNames(
        dense="lm_predictions.lm_head.dense",
        norm="lm_predictions.lm_head.LayerNorm",
        decoder="lm_predictions.lm_head.decoder",  # never there: always the embeddings' table
        bias="lm_predictions.lm_head.bias",
    ),
)
