"""Tokens that other files than tokenizer.json add to its vocabulary, as Transformers adds them.

Who adds tokens with another library than `tokenizers`, or edits the config, leaves them in
tokenizer_config.json, in older folders in added_tokens.json and special_tokens_map.json.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import tokenizers

from packhorse.checkpoint import read_json
from packhorse.config_values import refusal

logger = logging.getLogger(__name__)

CONFIG = "tokenizer_config.json"
DECODER = "added_tokens_decoder"

_NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_EXTRA = ("extra_special_tokens", "additional_special_tokens")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def with_added_tokens(text: str, folder: Path) -> str:
    """The text of tokenizer.json, with the tokens that only the folder's other files have.

    What cannot be read is returned as it is: whoever loads it says what is wrong.
    Raises CheckpointError for a token that is none.
    """
    try:
        there = json.loads(text)["added_tokens"]
        known = {token["content"]: _flags(token) for token in there}
    except (ValueError, TypeError, KeyError, RecursionError):
        return text
    missing = list(_missing(folder, known))
    if not missing:
        return text
    try:
        library = tokenizers.Tokenizer.from_str(text)
    except Exception:  # the library has no class of its own for what is wrong
        return text
    added = [
        token
        for token, is_named in missing
        if not is_named or library.token_to_id(token.content) is not None
    ]
    if not added:
        return text
    library.add_tokens(added)
    names = [token.content for token in added]
    logger.warning(
        "%s: tokens that tokenizer.json lacks are added, as in Transformers: %s",
        folder,
        ", ".join(map(repr, names[:10])) + (" …" if len(names) > 10 else ""),
    )
    return str(library.to_str())


def _missing(
    folder: Path, known: Mapping[str, Any]
) -> Iterator[tuple[tokenizers.AddedToken, bool]]:
    """The tokens to be added, in the order in which they get their ids.

    With each whether it is only named, as the mask token or another: then it is no new one, and
    one that the vocabulary lacks is none. A model has no embedding for what was never trained.
    """
    path = folder / CONFIG
    config = _object(path)
    special = _special(config, path)
    if DECODER in config:
        listed = _decoder(path, config[DECODER])
    else:
        path = folder / "special_tokens_map.json"
        special |= _special(_object(path), path)
        listed = _older(folder, {one.content for tokens in special.values() for one in tokens})
    names = {special[key][0].content for key in _NAMED if key in special}
    added: set[str] = set()
    for token in listed:
        is_known = known.get(token.content) == _flags_of(token)
        if not is_known and token.content not in added:
            added.add(token.content)
            token.special = token.special or token.content in names
            yield token, False
    for token in chain.from_iterable(special.values()):
        if token.content not in known and token.content not in added:
            added.add(token.content)
            yield token, token.content in names


def _special(config: Mapping[str, Any], path: Path) -> dict[str, list[tokenizers.AddedToken]]:
    """The tokens that have a task, by the key that says it; those without a key of their own
    under one."""
    found = {key: [_token(path, config[key])] for key in _NAMED if config.get(key)}
    extra = config.get(_EXTRA[0]) or config.get(_EXTRA[1]) or []
    if isinstance(extra, dict):
        extra = list(extra.values())
    if not isinstance(extra, list):
        raise refusal(path, _EXTRA[0], extra, "a list of tokens")
    return found | ({_EXTRA[0]: [_token(path, each) for each in extra]} if extra else {})


def _decoder(path: Path, decoder: Any) -> Iterator[tokenizers.AddedToken]:
    if not isinstance(decoder, dict) or not all(key.isdigit() for key in decoder):
        raise refusal(path, DECODER, decoder, "an object: id to token")
    for _, token in sorted(decoder.items(), key=lambda item: int(item[0])):
        yield _token(path, token, special=False)


def _older(folder: Path, special: Collection[str]) -> Iterator[tokenizers.AddedToken]:
    """Those of added_tokens.json, which says nothing of them but their ids."""
    path = folder / "added_tokens.json"
    added = _object(path)
    if not all(isinstance(number, int) for number in added.values()):
        raise refusal(path, "added_tokens.json", added, "an object: token to id")
    for name, _ in sorted(added.items(), key=lambda item: int(item[1])):
        yield tokenizers.AddedToken(name, normalized=name not in special, special=name in special)


def _token(path: Path, value: Any, special: bool = True) -> tokenizers.AddedToken:
    """A token as the files write it: its text, or an object with its flags."""
    if isinstance(value, str):
        return tokenizers.AddedToken(value, special=special)
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        flags = {key: value[key] for key in _FLAGS if isinstance(value.get(key), bool)}
        return tokenizers.AddedToken(value["content"], **{"special": special} | flags)
    raise refusal(path, "token", value, "a text, or an object with its content")


def _object(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _flags(token: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(token[key] for key in _FLAGS)


def _flags_of(token: tokenizers.AddedToken) -> tuple[Any, ...]:
    return tuple(getattr(token, key) for key in _FLAGS)
