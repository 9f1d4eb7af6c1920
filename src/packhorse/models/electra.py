"""ELECTRA: embeddings of their own width, and GELU where its kin have tanh."""

from __future__ import annotations

from dataclasses import replace

from packhorse.models.bert import BERT

ELECTRA = replace(
    BERT,
    projection="embeddings_project",
    head=(("classifier.dense", "gelu"), ("classifier.out_proj", None)),
)
