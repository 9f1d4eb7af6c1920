"""A small checkpoint of any family with random weights, written by Transformers itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from packhorse.checkpoint import DEMO_MODEL, read_json
from packhorse.families import FAMILIES
from packhorse.tools.bench.fidelity.subjects import Subject

SIZES = {
    "hidden_size": 128,
    "num_layers": 3,
    "num_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 194,
    "pad_token_id": 0,
}
"""By field of ``Architecture``; each family has keys of its own for them."""

EMBEDDING_SIZE = 64
"""Of families that have one: another than the hidden size, so that the projection is tried."""

OWN: dict[str, dict[str, Any]] = {
    "modernbert": {
        "local_attention": 16,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0),
    },
    "deberta-v2": {
        "relative_attention": True,
        "position_buckets": 32,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": "p2c|c2p",
        "position_biased_input": False,
    },
}
"""What makes a family what it is, where Transformers' defaults do not: so that it is tried."""

EPS = 1e-5
"""Large enough for ten times as much to be seen."""

SPREAD = 0.12
"""Standard deviation of weights and biases; LayerNorm weights are around 1. Logits of different
texts then lie far apart. Untrained biases of 0 would hide a term that is left out."""


def write_checkpoint(subject: Subject, folder: Path, seed: int = 0) -> Path:
    """Config, weights and the demo model's tokenizer, into a folder that is not there yet."""
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO_MODEL / name, folder)
    config = transformers.AutoConfig.for_model(subject.family, **_settings(subject))
    with torch.random.fork_rng(devices=[]):  # Transformers draws numbers that are then replaced
        model = getattr(transformers, subject.model_class)(config)
    _randomize(model, seed)
    model.save_pretrained(folder)
    return folder


def altered(folder: Path, target: Path, **changes: Any) -> Path:
    """A copy of a checkpoint with other values in its config."""
    shutil.copytree(folder, target)
    config = read_json(target / "config.json") | changes
    (target / "config.json").write_text(json.dumps(config))
    return target


def _settings(subject: Subject) -> dict[str, Any]:
    """The sizes and the problem's keys, by the names that this family's config has for them."""
    vocab_size = read_json(DEMO_MODEL / "config.json")["vocab_size"]
    values = SIZES | {
        "embedding_size": EMBEDDING_SIZE,
        "layer_norm_eps": EPS,
        "vocab_size": vocab_size,
    }
    settings = FAMILIES[subject.family].settings
    named = {
        key: value
        for field, value in values.items()
        if field in settings and (key := settings[field].key) is not None
    }
    return named | OWN.get(subject.family, {}) | subject.problem.settings


def _randomize(model: nn.Module, seed: int) -> None:
    """Normal numbers for every parameter, from a generator of their own."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            middle = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
            parameter.normal_(middle, SPREAD, generator=generator)
