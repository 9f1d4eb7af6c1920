"""What a tokenizer calls its tokens, and how their names become text again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tokenizers

from packhorse.checkpoint import read_json
from packhorse.entities import Vocabulary
from packhorse.tokenizing.tokenizer import Tokenizer


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """Read off the tokenizer's parts."""
    library = tokenizer.library
    names = library.get_vocab(with_added_tokens=True)
    lengths = np.zeros(max(names.values()) + 1, np.int32)
    for name, number in names.items():
        lengths[number] = len(name)

    def joined(pieces: Sequence[str]) -> str:
        return " ".join(pieces) if library.decoder is None else library.decoder.decode(list(pieces))

    def name_of(number: int) -> str:
        return library.id_to_token(number) or ""

    return Vocabulary(
        token_lengths=lengths,
        unk_token_id=_unk_token_id(tokenizer),
        has_prefix=bool(getattr(library.model, "continuing_subword_prefix", None)),
        name_of=name_of,
        joined=joined,
    )


def _unk_token_id(tokenizer: Tokenizer) -> int | None:
    """Of the unknown token: as tokenizer_config.json names it, else as the model's part does."""
    path = tokenizer.folder / "tokenizer_config.json"
    name = read_json(path).get("unk_token") if path.exists() else None
    name = name.get("content") if isinstance(name, dict) else name
    model = tokenizer.library.model
    if isinstance(name, str):
        return _id_of(tokenizer.library, name)
    if isinstance(model, tokenizers.models.Unigram):
        return getattr(model, "unk_id", None)
    own = getattr(model, "unk_token", None)
    return None if own is None else _id_of(tokenizer.library, own)


def _id_of(library: tokenizers.Tokenizer, name: str) -> int | None:
    number: int | None = library.token_to_id(name)
    return number
