"""The shape of an encoder, read off config.json: every value checked, alone and with the others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from packhorse.config_values import DTYPES, LARGEST, dtype_named, is_integer, refusal
from packhorse.families import ACTIVATIONS, Family, Setting, activation_named
from packhorse.positions import DisentangledPositions, RotaryPositions, positions_of

_ALBERT_GROUPS = Setting("num_hidden_groups", 1)
"""How many sets of weights ALBERT's layers share; no other family has it."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """The shape of an encoder, in one vocabulary for every family.

    Lengths are in tokens. ``first_position`` is the position id of a
    sequence's first token: 0, or pad_token_id + 1 in the RoBERTa kin.
    ``head_act`` is the head's activation where the config names it, ``mean_pooled`` whether the
    head reads the mean of all tokens, ``positions`` how places enter attention besides a table.
    """

    family: str
    vocab_size: int
    embedding_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    hidden_act: str
    layer_norm_eps: float
    max_position_embeddings: int
    first_position: int
    type_vocab_size: int
    pad_token_id: int
    torch_dtype: str | None
    head_act: str | None = None
    mean_pooled: bool = False
    positions: RotaryPositions | DisentangledPositions | None = None

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def max_positions(self) -> int:
        """The longest sequence, special tokens included, that has positions."""
        return self.max_position_embeddings - self.first_position


def architecture_of(config: Mapping[str, Any], family: Family, path: Path) -> Architecture:
    """The shape of the encoder, every value checked by itself and against the others."""
    for key, values in family.only.items():
        if config.get(key) not in values:
            accepted = " or ".join(json.dumps(value) for value in values if value is not None)
            raise refusal(path, key, config[key], accepted or "no such key")

    def size(field: str) -> int:
        return _size(config, family.settings[field], path)

    head_act = family.settings.get("head_act")
    architecture = Architecture(
        family=family.model_type,
        vocab_size=size("vocab_size"),
        embedding_size=size("embedding_size") or size("hidden_size"),
        hidden_size=size("hidden_size"),
        num_layers=size("num_layers"),
        num_heads=size("num_heads"),
        intermediate_size=size("intermediate_size"),
        hidden_act=_activation(config, family.settings["hidden_act"], path),
        layer_norm_eps=_epsilon(config, family.settings["layer_norm_eps"], path),
        max_position_embeddings=size("max_position_embeddings"),
        first_position=_first_position(config, family, path),
        type_vocab_size=size("type_vocab_size"),
        pad_token_id=_pad_token_id(config, family, path),
        torch_dtype=_dtype(config, path),
        head_act=_activation(config, head_act, path) if head_act else None,
        mean_pooled=config.get("classifier_pooling") == "mean",
        positions=positions_of(family.positions, config, partial(refusal, path)),
    )
    _check_fit(architecture, family, path)
    if family.model_type == "albert":
        _size(config, _ALBERT_GROUPS, path)  # the loader divides by it
    return architecture


def _check_fit(architecture: Architecture, family: Family, path: Path) -> None:
    """Raise for values that are fine each, but not together."""
    if architecture.hidden_size % architecture.num_heads:
        key = family.settings["num_heads"].key or "num_heads"
        accepted = f"a divisor of the hidden size, {architecture.hidden_size}"
        raise refusal(path, key, architecture.num_heads, accepted)
    if architecture.max_positions < 1:
        key = family.settings["max_position_embeddings"].key or "max_position_embeddings"
        accepted = f"more than {architecture.first_position}, the first token's position"
        raise refusal(path, key, architecture.max_position_embeddings, accepted)


def _value(config: Mapping[str, Any], setting: Setting) -> tuple[str, Any]:
    """Key and value of a setting; the default only where the key is absent, as in Transformers."""
    if setting.key is None:
        return "", setting.default
    return setting.key, config.get(setting.key, setting.default)


def _size(config: Mapping[str, Any], setting: Setting, path: Path) -> int:
    """A whole number from 1 on; 0 only where that is a family's fixed value or its default.

    A default of None means that it must be there.
    """
    key, value = _value(config, setting)
    least = 1 if setting.default is None else min(1, setting.default)
    if setting.key is None or is_integer(value, least):
        return int(value)
    raise refusal(path, key, value, f"a whole number from 1 to {LARGEST}")


def _activation(config: Mapping[str, Any], setting: Setting, path: Path) -> str:
    key, value = _value(config, setting)
    if (name := activation_named(value)) is not None:
        return name
    raise refusal(path, key, value, ", ".join(ACTIVATIONS))


def _epsilon(config: Mapping[str, Any], setting: Setting, path: Path) -> float:
    key, value = _value(config, setting)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and 0 < value < 1:  # false for NaN too
        return float(value)
    raise refusal(path, key, value, "a number between 0 and 1")


def _pad_token_id(config: Mapping[str, Any], family: Family, path: Path) -> int:
    """The pad id, which is read only in families whose positions are counted from it.

    In the others null and -1 occur on the hub and mean nothing: the default stands in.
    """
    setting = family.settings["pad_token_id"]
    key, value = _value(config, setting)
    vocab_size = _size(config, family.settings["vocab_size"], path)
    if setting.key is None or (is_integer(value, 0) and value < vocab_size):
        return int(value)
    if family.first_position is not None:
        return int(setting.default)
    raise refusal(path, key, value, f"a whole number from 0 to {vocab_size - 1}")


def _first_position(config: Mapping[str, Any], family: Family, path: Path) -> int:
    if family.first_position is not None:
        return family.first_position
    return _pad_token_id(config, family, path) + 1


def _dtype(config: Mapping[str, Any], path: Path) -> str | None:
    """The type the weights were saved in, as far as the config says; ``dtype`` is the newer key."""
    key = "dtype" if config.get("dtype") is not None else "torch_dtype"
    value = config.get(key)
    name = dtype_named(value)
    if value is None or name is not None:
        return name
    raise refusal(path, key, value, ", ".join(DTYPES))
