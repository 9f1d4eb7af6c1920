"""MPNet: no segments, and a bias on the scores that depends on the distance of two tokens."""

from __future__ import annotations

from packhorse.models.names import Names
from packhorse.models.roberta import LM_HEAD

MPNET = Names(
    token_type=None,
    relative_bias=("encoder.relative_attention_bias", "relative_attention_num_buckets"),
    query="encoder.layer.{i}.attention.attn.q",
    key="encoder.layer.{i}.attention.attn.k",
    value="encoder.layer.{i}.attention.attn.v",
    attention_output="encoder.layer.{i}.attention.attn.o",
    attention_norm="encoder.layer.{i}.attention.LayerNorm",
    head=(("classifier.dense", "tanh"), ("classifier.out_proj", None)),
    masked_lm=LM_HEAD,
)
