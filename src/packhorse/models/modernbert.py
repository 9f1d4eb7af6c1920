"""ModernBERT: turned queries and keys, near and far attention, gated feed-forwards, few biases."""

from __future__ import annotations

from packhorse.models.names import CONFIGURED, MaskedLmNames, Names

MODERNBERT = Names(
    word="embeddings.tok_embeddings",
    position=None,
    token_type=None,
    embedding_norm="embeddings.norm",
    qkv="layers.{i}.attn.Wqkv",
    attention_output="layers.{i}.attn.Wo",
    attention_norm="layers.{i}.attn_norm",  # of what attention reads, unlike BERT's
    mlp_in="layers.{i}.mlp.Wi",
    mlp_out="layers.{i}.mlp.Wo",
    mlp_norm="layers.{i}.mlp_norm",
    final_norm="final_norm",
    first_norm=False,
    biases={
        "attention": "attention_bias",
        "mlp": "mlp_bias",
        "norm": "norm_bias",
        "head": "classifier_bias",
        "decoder": "decoder_bias",
    },
    head=(("head.dense", CONFIGURED), ("classifier", None)),
    token_head=(("head.dense", CONFIGURED), ("classifier", None)),
    head_norm="head.norm",
    masked_lm=MaskedLmNames(
        dense="head.dense", norm="head.norm", activation=CONFIGURED, decoder="decoder", bias=None
    ),
)
