"""What is tokenised together: texts and pairs that are known to be such, and how they are cut."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from packhorse.errors import ValidationError
from packhorse.request import BoolArray, TextOrPair
from packhorse.tokenizing.safe_cuts import Direction


@dataclass(slots=True)
class Inputs:
    """Checked inputs and how to truncate them.

    all      each a text or a pair of texts
    is_pair  bool (N,), or None when all inputs are texts
    first    the index that the caller knows all[0] by
    """

    all: list[Any]
    is_pair: BoolArray | None
    truncate: bool
    direction: Direction
    first: int = 0

    @classmethod
    def checked(cls, inputs: Sequence[TextOrPair], truncate: bool, direction: Direction) -> Inputs:
        """Raises ValidationError for what is neither text nor pair."""
        if isinstance(inputs, (str, bytes)):
            raise ValidationError("inputs must be a list of texts or pairs, not one text")
        listed = inputs if type(inputs) is list else list(inputs)
        is_pair = None if set(map(type, listed)) <= {str} else _pairs_among(listed)
        return cls(listed, is_pair, truncate, direction)

    def only(self, i: int) -> Inputs:
        """Input ``i`` alone."""
        is_pair = None if self.is_pair is None else self.is_pair[i : i + 1]
        return Inputs(self.all[i : i + 1], is_pair, self.truncate, self.direction, i)

    def fingerprint(self, i: int) -> str:
        """Length and hash: enough to find a text again, not enough to read it in a log."""
        text = self.all[i] if isinstance(self.all[i], str) else "\0".join(self.all[i])
        return f"{len(text)} characters, SHA-256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _pairs_among(inputs: list[Any]) -> BoolArray:
    """Which inputs are pairs, bool (N,). Raises ValidationError for what is neither."""
    is_pair = np.zeros(len(inputs), np.bool_)
    for i, each in enumerate(inputs):
        if isinstance(each, str):
            continue
        if not isinstance(each, (tuple, list)):
            found = type(each).__name__
        elif len(each) != 2:
            found = f"{type(each).__name__} of {len(each)}"
        elif not all(isinstance(text, str) for text in each):
            found = "pair of " + " and ".join(type(text).__name__ for text in each)
        else:
            is_pair[i] = True
            continue
        raise ValidationError(f"inputs[{i}] must be a text or a pair of texts, not a {found}")
    return is_pair
