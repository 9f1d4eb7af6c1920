"""What is read of a checkpoint of a family that has no packed path: enough to run it padded.

Such a model runs through Transformers, where that is installed: its own forward pass, slower
than ours. Nothing of it is imported here, and no code that comes with a model is ever run.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from packhorse.families import SERVED_CLASSES, Family, Setting
from packhorse.tasks import Task

HINT = "a model of another family can run padded, and slower: pip install 'packhorse[fallback]'"
"""For the message that refuses one where Transformers is not installed."""

_KEYS: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "d_model", "dim", "n_embd", "emb_dim"),
    "num_layers": ("num_hidden_layers", "n_layers", "num_layers", "n_layer", "encoder_layers"),
    "num_heads": ("num_attention_heads", "n_heads", "num_heads", "n_head"),
    "intermediate_size": ("intermediate_size", "d_inner", "d_ff", "encoder_ffn_dim", "hidden_dim"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions"),
}
"""Under which keys Transformers' families keep what is asked of all of them, likeliest first."""

_DEFAULTS = {"num_layers": 1, "num_heads": 1, "intermediate_size": 1}
"""What is only shown, and may be missing."""

_UNSTATED_POSITIONS = 512
"""The length limit of a model whose config has none, unless its tokenizer's is lower."""

_COUNTED_FROM_PAD = (
    *("data2vec-text", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm"),
    *("roberta-prelayernorm", "xlm-roberta-xl", "xmod"),
)
"""RoBERTa's kin: their first position is pad_token_id + 1, so they have fewer than they say."""


def is_installed() -> bool:
    """Whether Transformers can be imported; it is not."""
    return find_spec("transformers") is not None


def fallback_family(config: Mapping[str, Any]) -> Family | None:
    """The row of a family of Transformers' that has none of ours.

    None where its class name does not say that it classifies or encodes texts.
    """
    name, classes = config.get("model_type"), config.get("architectures")
    if not isinstance(name, str) or not name or not isinstance(classes, list):
        return None
    tasks = {each: task for each in classes if (task := _task_of_class(each)) is not None}
    if not tasks:
        return None
    settings = {
        "vocab_size": Setting("vocab_size", None),
        "embedding_size": Setting(None, 0),
        "hidden_act": Setting(None, "gelu"),  # its own is computed, and this one never read
        "layer_norm_eps": Setting(None, 1e-12),
        "type_vocab_size": _first_setting(config, ("type_vocab_size",), 0),
        "pad_token_id": Setting("pad_token_id", 0),
    }
    for field, keys in _KEYS.items():
        default = _DEFAULTS.get(field)
        if field == "max_position_embeddings":
            default = _UNSTATED_POSITIONS
        settings[field] = _first_setting(config, keys, default)
    return Family(
        model_type=name,
        prefix="",
        architectures=tasks,
        first_position=None if name in _COUNTED_FROM_PAD else 0,
        settings=settings,
        only={},
        ignorable=(),
    )


def _first_setting(config: Mapping[str, Any], keys: tuple[str, ...], default: Any) -> Setting:
    """The first of these keys that has a value; of none that may be missing the default."""
    for key in keys:
        if config.get(key) not in (None, 0):
            return Setting(key, default)
    return Setting(keys[0] if default is None else None, default)


def _task_of_class(name: Any) -> Task | None:
    if not isinstance(name, str) or name.endswith(("HeadModel", "HeadsModel")):
        return None
    return next((task for end, task in SERVED_CLASSES.items() if name.endswith(end)), None)
