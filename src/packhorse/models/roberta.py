"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT's trunk, and a head with a dense layer of its own."""

from __future__ import annotations

from dataclasses import replace

from packhorse.models.bert import BERT

ROBERTA = replace(BERT, head=(("classifier.dense", "tanh"), ("classifier.out_proj", None)))
