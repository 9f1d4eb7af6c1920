"""Checkpoints with random weights in the shapes of other families than BERT.

Config and names are those of the real models, the tokenizer is that of
``random_checkpoint``: texts then have as many tokens in every family, and what
differs between rows of a table is the model alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from packhorse.checkpoint import load_checkpoint
from packhorse.request import Float32Array

_LABELS = {
    "id2label": {"0": "NEGATIVE", "1": "POSITIVE"},
    "label2id": {"NEGATIVE": 0, "POSITIVE": 1},
}

CONFIGS: dict[str, dict[str, Any]] = {
    "modernbert-base": {
        "architectures": ["ModernBertForSequenceClassification"],
        "model_type": "modernbert",
        "vocab_size": 50368,
        "hidden_size": 768,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "intermediate_size": 1152,
        "hidden_activation": "gelu",
        "max_position_embeddings": 8192,
        "norm_eps": 1e-5,
        "global_attn_every_n_layers": 3,
        "local_attention": 128,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
        "classifier_pooling": "cls",
        # The real ids are not in this tokenizer.
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0),
        **dict.fromkeys(("cls_token_id", "sep_token_id"), 0),
        **_LABELS,
    },
    "deberta-v3-base": {
        "architectures": ["DebertaV2ForSequenceClassification"],
        "model_type": "deberta-v2",
        "vocab_size": 128100,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "max_position_embeddings": 512,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
        "relative_attention": True,
        "max_relative_positions": -1,
        "position_buckets": 256,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": "p2c|c2p",
        "position_biased_input": False,
        "pooler_hidden_act": "gelu",
        "pad_token_id": 0,
        **_LABELS,
    },
}
"""config.json by the name of the shape: answerdotai/ModernBERT-base, microsoft/deberta-v3-base."""

_HEADS = ("pooler.", "classifier.", "head.")
"""How names start that are not of the trunk, in the families above."""


def write_weights(folder: Path, spread: float, seed: int = 0) -> None:
    """Every tensor that the config in ``folder`` asks for: normal numbers, norms around 1."""
    from packhorse.models.expected import expected_shapes  # torch, which not every rung has yet
    from packhorse.models.load import FAMILY_NAMES

    checkpoint = load_checkpoint(folder)
    shapes = expected_shapes(checkpoint, FAMILY_NAMES[checkpoint.architecture.family])
    random = np.random.default_rng(seed)
    tensors: dict[str, Float32Array] = {}
    for name, dimensions in shapes.items():
        full = name if name.startswith(_HEADS) else f"{checkpoint.family.prefix}.{name}"
        tensors[full] = random.standard_normal(dimensions, np.float32) * np.float32(spread)
        if "norm" in name.lower() and name.endswith("weight"):
            tensors[full] += 1
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_config(name: str, folder: Path) -> int:
    """config.json of a shape; returns its hidden size."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[name]))
    return int(CONFIGS[name]["hidden_size"])
