"""The texts that are measured. Equal texts stay: nothing here or below removes them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from packhorse.errors import ConfigError
from packhorse.request import Int32Array, Sequences, bounds_of
from packhorse.tools.demo_split import REVIEWS, read_reviews

SEED_TEXTS = ("This is a great product!", "Terrible service.")
"""Alternating in the workload ``seed``."""

LONGEST = 128
"""The first two rungs cut texts to this many tokens, so no workload of the ladder has longer."""

NAMES = ("seed", "reviews")

SPREAD_TEXTS = (
    "good",
    "It broke after two days and nobody answered my letters.",
    "The second act is slow, the third makes up for it.",
    "Would buy again!",
    "I have no opinion about the colour of the box it came in.",
    "Not bad at all for the price, though the manual is a riddle.",
    "Why does every film need a talking dog?",
    "A triumph.",
    "The committee meets on Thursday at ten in the usual room, and lunch is served at one.",
    "Awful, awful, awful",
    "She sings as if the roof were not there.",
    "7 of 10",
)
"""How far apart a model's logits lie is measured on these: errors are judged relative to it."""

Lengths = Callable[[Sequence[str]], Int32Array]
"""Tokens in each text, special tokens included."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A name, the texts and their lengths in tokens, int32 (texts,), and where they are from."""

    name: str
    texts: list[str]
    lengths: Int32Array
    note: str


def workload(name: str, count: int, lengths: Lengths, reviews: Path = REVIEWS) -> Workload:
    """``count`` texts of a workload by its name.

    Raises ConfigError for an unknown name, a missing file or too few texts in it.
    """
    if name == "seed":
        texts = [SEED_TEXTS[i % 2] for i in range(count)]
        note = f"{count} texts, the two of the guide in turn"
    elif name == "reviews":
        texts = distinct_reviews(lengths, reviews)
        if count > len(texts):
            raise ConfigError(f"{reviews} holds {len(texts)} texts that fit, not {count}")
        texts = texts[:count]
        note = f"{count} real reviews, all distinct, of at most {LONGEST} tokens"
    else:
        raise ConfigError(f"workload {name!r} is not one of {', '.join(NAMES)}")
    return Workload(name, texts, lengths(texts), note)


def distinct_reviews(lengths: Lengths, reviews: Path = REVIEWS) -> list[str]:
    """All distinct reviews of at most LONGEST tokens, shuffled once and for all.

    Raises ConfigError when the file is not there.
    """
    if not reviews.is_file():
        raise ConfigError(
            f"{reviews} is missing: run this in a checkout's root, or name the file with --reviews"
        )
    texts = list(dict.fromkeys(review.text for review in read_reviews(reviews)))
    random.Random(0).shuffle(texts)
    fits = lengths(texts) <= LONGEST
    return [text for text, fit in zip(texts, fits.tolist(), strict=True) if fit]


def cut_to(sequences: Sequences, length: int, count: int) -> Sequences:
    """``count`` sequences of exactly ``length`` tokens, cut from the tokens of real texts.

    The first and last token of a sequence (its special tokens) open and close
    each piece; the tokens between them are taken in a row, and from the start
    again where they run out.
    """
    bounds = sequences.cu_seqlens
    special = np.zeros(sequences.num_tokens, np.bool_)
    special[bounds[:-1]] = special[bounds[1:] - 1] = True
    inner = sequences.input_ids[~special]
    rows = np.resize(inner, (count, length - 2))
    first, last = sequences.input_ids[0], sequences.input_ids[bounds[1] - 1]
    ids = np.concatenate(
        [np.full((count, 1), first), rows, np.full((count, 1), last)], axis=1, dtype=np.int32
    )
    return Sequences(
        input_ids=ids.reshape(-1),
        cu_seqlens=bounds_of(np.full(count, length, np.int32)),
        truncated=np.zeros(count, np.bool_),
    )
