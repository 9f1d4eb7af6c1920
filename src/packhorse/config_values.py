"""Values of a checkpoint's JSON files: read, checked, and refused with file, key and value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packhorse.errors import CheckpointError

DTYPES = ("float16", "bfloat16", "float32", "float64")
"""What weights may have been saved in."""

_DTYPE_ALIASES = {"half": "float16", "float": "float32", "double": "float64"}
"""Other names of the same types in torch."""

UNLIMITED = 1_000_000_000
"""A tokenizer's length limit from here on means that it has none: Transformers writes 1e30."""

LARGEST = 2**31 - 1
"""Ids, positions and lengths travel as int32."""


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of the checkpoint.

    Raises CheckpointError when it is missing, broken or not an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: is {path.parent} a model folder?") from None
    # ValueError is wrong UTF-8, broken JSON or a number of absurd length.
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object, not {type(value).__name__}")
    return value


def refusal(path: Path, key: str, value: object, accepted: str) -> CheckpointError:
    """The error for one wrong value: file, key, value, and what would be right."""
    shown = json.dumps(value, ensure_ascii=False, default=repr)
    if len(shown) > 100:
        shown = shown[:100] + "…"
    return CheckpointError(f'{path}: "{key}" is {shown}; accepted: {accepted}')


def is_integer(value: object, least: int) -> bool:
    """Whether this JSON value is a whole number from ``least`` on that fits an int32."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return is_integer and least <= value <= LARGEST  # type: ignore[operator]


def dtype_named(value: object) -> str | None:
    """The one of ``DTYPES`` that this JSON value means, in torch's names; None if it means none."""
    if not isinstance(value, str):
        return None
    name = value.removeprefix("torch.")
    name = _DTYPE_ALIASES.get(name, name)
    return name if name in DTYPES else None


def stated_length(path: Path) -> int | None:
    """The length limit in tokens that a tokenizer_config.json states; None where it has none.

    A ``truncation`` in tokenizer.json does not count, as it does not for
    Transformers: it is what the tokenizer was last used with, not a limit.
    """
    config = read_json(path) if path.exists() else {}
    value = config.get("model_max_length", config.get("max_len"))  # the older key
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is None or (is_number and value >= UNLIMITED):
        return None
    if not is_number or not 1 <= value < UNLIMITED or value != int(value):
        raise refusal(path, "model_max_length", value, "a whole number of tokens from 1 on")
    return int(value)


def switch(config: Mapping[str, Any], key: str, path: Path) -> bool:
    """A value that is true or false; false where it is null or not there.

    Raises CheckpointError for another one.
    """
    value = config.get(key)
    if not isinstance(value, bool | None):
        raise refusal(path, key, value, "true or false")
    return bool(value)
