"""Which library serves a tokenizer.json: a fast one only where it gives the reference's ids."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from packhorse.errors import ConfigError
from packhorse.request import Int32Array
from packhorse.tokenizing.backends import (
    Backend,
    LibraryFaultError,
    NanotokenBackend,
    Rows,
    TokenizersBackend,
    rows_of,
)
from packhorse.tokenizing.gigatoken_backend import GigatokenBackend
from packhorse.tokenizing.probes import probes

BackendChoice = Literal["auto", "nanotoken", "gigatoken", "tokenizers"]
"""auto: the fast library for this kind, if it gives the ids of `tokenizers` for every probe."""

FAST = {"WordPiece": "nanotoken", "BPE": "gigatoken"}
"""The kind of a tokenizer.json to the library that is fast at it."""

INSTALL = {"gigatoken": ": pip install 'packhorse[bpe]'"}
"""How to get what is no dependency of ours."""

FEW = 16
"""Libraries take other ways for few texts than for many: probes are given in both numbers."""

_BUILDERS: dict[str, Callable[[str, TokenizersBackend, bool | None], Backend]] = {
    "nanotoken": lambda text, _, parallel: NanotokenBackend(text, parallel),
    "gigatoken": GigatokenBackend,
}


def chosen_backend(
    wanted: BackendChoice, text: str, reference: TokenizersBackend, parallel: bool | None
) -> tuple[Backend, str]:
    """The library that shall serve a tokenizer.json, and why.

    Raises ConfigError when a fast one is wanted by name and cannot serve it.
    """
    if wanted == "tokenizers":
        return reference, "it was asked for"
    kind = _kind(text)
    name = FAST.get(kind) if wanted == "auto" else wanted
    if name is None:
        return reference, f"no fast library tokenises {kind}"
    candidate, reason = _candidate(name, text, reference, parallel)
    if candidate is None and wanted != "auto":
        raise ConfigError(f"{name} cannot serve this model: {reason}; choose auto or tokenizers")
    return candidate or reference, reason


def first_difference(candidate: Backend, reference: Backend, texts: Sequence[str]) -> int | None:
    """The first text to which the two give other ids, with or without special tokens.

    The candidate gets the texts together and a few at a time.
    Raises LibraryFaultError when one of them fails.
    """
    for special in (True, False):
        theirs = rows_of(reference, texts, special)
        for size in (len(texts), FEW):
            for first in range(0, len(texts), max(1, size)):
                ours = rows_of(candidate, texts[first : first + size], special)
                if _equal(ours, theirs, first):
                    continue
                for i in range(len(ours.lengths)):
                    if not np.array_equal(_row(ours, i), _row(theirs, first + i)):
                        return first + i
    return None


def _equal(ours: Rows, theirs: Rows, first: int) -> bool:
    """Whether all of our rows are theirs from this one on: at once, since they nearly always are.

    Row by row it takes half of the time that a tokenizer takes to load.
    """
    bounds = theirs.bounds[first : first + len(ours.lengths) + 1]
    return np.array_equal(ours.bounds, bounds - bounds[0]) and np.array_equal(
        ours.ids, theirs.ids[bounds[0] : bounds[-1]]
    )


def _row(rows: Rows, i: int) -> Int32Array:
    return rows.ids[rows.bounds[i] : rows.bounds[i + 1]]


def _kind(text: str) -> str:
    """The type of the model in a tokenizer.json that `tokenizers` has accepted.

    Old files do not say: their vocabulary has merges or a prefix of pieces.
    """
    model = json.loads(text)["model"]
    if "type" in model:
        return str(model["type"])
    return "BPE" if "merges" in model else "WordPiece" if isinstance(model["vocab"], dict) else "?"


def _candidate(
    name: str, text: str, reference: TokenizersBackend, parallel: bool | None
) -> tuple[Backend | None, str]:
    """A fast library, if it can be had and agrees with the reference on all probes; why (not)."""
    try:
        candidate = _BUILDERS[name](text, reference, parallel)
    except ImportError:
        return None, f"{name} is not installed{INSTALL.get(name, '')}"
    except Exception as error:
        message = str(error).partition("\n")[0]
        return None, f"{name} does not support this tokenizer: {message}"
    texts = probes(reference.library)
    try:
        different = first_difference(candidate, reference, texts)
    except LibraryFaultError as fault:
        return None, f"comparing {name} with tokenizers failed: {fault}"
    if different is not None:
        return None, f"{name} gives other ids for {ascii(texts[different])[:80]}"
    return candidate, f"it gives the ids of tokenizers for {len(texts)} probes"
