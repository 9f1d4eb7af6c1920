"""What is tokenised together: texts and pairs that are known to be such, and how they are cut."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from packhorse.errors import ValidationError
from packhorse.request import BoolArray, Int32Array, TextOrPair
from packhorse.tokenizing.safe_cuts import Direction


@dataclass(slots=True)
class Inputs:
    """Checked inputs and how to truncate them.

    all      each a text or a pair of texts
    is_pair  bool (N,), or None when all inputs are texts
    first_only  whether of pairs the first text alone is cut, and not the longer one first
    first    the index that the caller knows all[0] by
    most     tokens that a sequence may have, special tokens included; None: the model's limit
    most_of_second  tokens of a pair's second text that are read, however long; None: all
    """

    all: list[Any]
    is_pair: BoolArray | None
    truncate: bool
    direction: Direction
    first_only: bool = False
    first: int = 0
    most: int | None = None
    most_of_second: int | None = None

    @classmethod
    def checked(
        cls,
        inputs: Sequence[TextOrPair],
        truncate: bool,
        direction: Direction,
        first_only: bool = False,
        most: int | None = None,
        most_of_second: int | None = None,
    ) -> Inputs:
        """Raises ValidationError for what is neither text nor pair."""
        if isinstance(inputs, (str, bytes)):
            raise ValidationError("inputs must be a list of texts or pairs, not one text")
        listed = inputs if type(inputs) is list else list(inputs)
        is_pair = None if set(map(type, listed)) <= {str} else _pairs_among(listed)
        return cls(
            listed,
            is_pair,
            truncate,
            direction,
            first_only,
            most=most,
            most_of_second=most_of_second,
        )

    def only(self, i: int) -> Inputs:
        """Input ``i`` alone."""
        is_pair = None if self.is_pair is None else self.is_pair[i : i + 1]
        return replace(self, all=self.all[i : i + 1], is_pair=is_pair, first=i)

    def check_first(self, places: Sequence[int], whole: Int32Array, kept: Int32Array) -> None:
        """Raises ValidationError for a pair whose second text leaves nothing of the first.

        places       which inputs the pairs are
        whole, kept  int32 (pairs,): tokens of the first texts, and how many of them stay
        """
        lost = kept < np.minimum(whole, 1)
        if lost.any():
            raise ValidationError(
                f"the second text of inputs[{self.first + places[int(lost.argmax())]}] leaves no "
                "room for the first, and only the first may be cut: shorten the second"
            )

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
