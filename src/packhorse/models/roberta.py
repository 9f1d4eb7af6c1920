"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT's trunk, and a head with a dense layer of its own."""

from __future__ import annotations

from dataclasses import replace

from packhorse.models.bert import BERT
from packhorse.models.names import MaskedLmNames

LM_HEAD = MaskedLmNames(
    dense="lm_head.dense",
    norm="lm_head.layer_norm",
    activation="gelu",
    decoder="lm_head.decoder",
    bias="lm_head.bias",
)

ROBERTA = replace(
    BERT,
    head=(("classifier.dense", "tanh"), ("classifier.out_proj", None)),
    masked_lm=LM_HEAD,
)
