"""The review texts and their split: what the demo model learns from and is judged on.

The split depends on the text alone, so that training and judging agree
without a list of rows, and equal texts always fall on the same side.
"""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path
from typing import NamedTuple

REVIEWS = Path("benchmarks/data/reviews.tsv")
"""Where a checkout keeps the texts, from its root. They are not in the wheel."""

CLEAR_SCORE = 0.5
"""Scores nearer to 0 than this are neutral: neither label is right for them."""


class Review(NamedTuple):
    """One text with the mean of its human ratings, from -4 (negative) to +4 (positive)."""

    source: str
    score: float
    text: str

    @property
    def is_clear(self) -> bool:
        return abs(self.score) >= CLEAR_SCORE

    @property
    def label(self) -> int:
        """0 is NEGATIVE, 1 is POSITIVE."""
        return int(self.score > 0)


def read_reviews(path: Path = REVIEWS) -> list[Review]:
    """All rows of a reviews file, in its order."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [Review(row["source"], float(row["score"]), row["text"]) for row in rows]


def is_held_out(text: str) -> bool:
    """True for a tenth of all texts: kept from training, used for the stated accuracy."""
    return _tenth(text, word=0) == 0


def is_validation(text: str) -> bool:
    """True for a tenth of the texts that are not held out: settings are chosen on these."""
    return not is_held_out(text) and _tenth(text, word=1) == 0


def _tenth(text: str, word: int) -> int:
    """Which tenth, 0 to 9, a 64-bit word of the text's hash falls into."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return int.from_bytes(digest[8 * word : 8 * word + 8], "big") % 10
