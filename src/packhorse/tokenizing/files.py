"""The files of a tokenizer."""

from __future__ import annotations

from pathlib import Path

from packhorse.checkpoint import Checkpoint, read_json
from packhorse.errors import CheckpointError


def read_tokenizer(path: Path) -> str:
    """The text of tokenizer.json. Raises CheckpointError."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is missing: save the model's fast tokenizer into {path.parent}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def reads_token_types(checkpoint: Checkpoint) -> bool:
    """Whether the model has a second token type and its tokenizer's config does not withhold it."""
    path = checkpoint.transformer / "tokenizer_config.json"
    names = read_json(path).get("model_input_names") if path.exists() else None
    return checkpoint.architecture.type_vocab_size > 1 and (
        names is None or "token_type_ids" in names
    )
