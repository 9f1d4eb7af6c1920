"""How what is too long is made to fit: how many tokens stay, and how much text need be read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from packhorse.request import BoolArray, Int32Array, TextOrPair
from packhorse.tokenizing.backends import Backend, LibraryFaultError, Rows, rows_of
from packhorse.tokenizing.safe_cuts import Direction, SafeCuts

_CHARACTERS_PER_TOKEN = 8
"""How much of a huge text to read at first. English prose has 4 to 5: mostly it is enough."""

_FEWEST_CHARACTERS = 1024
"""Below this, looking for a place to cut costs more than it saves."""

_GROWTH = 4
"""How many times more to read when that was not enough."""


def longest_first(
    first: Int32Array, second: Int32Array, room: int
) -> tuple[Int32Array, Int32Array]:
    """How many tokens of each text stay, int32 (N,) each, as ``tokenizers`` decides it.

    first, second  int32 (N,): tokens of the two texts of N pairs, without special tokens
    room           the tokens that a pair may have

    The longer text is cut until both are equally long, then both are, and of
    an odd room the text that was longer, or else the second, gets one more.
    Beyond ``room`` the counts themselves do not matter, only which is larger.
    """
    shorter, longer = np.minimum(first, second), np.maximum(first, second)
    kept = np.minimum(longer, np.maximum(shorter, room - shorter))
    both_cut = shorter + kept > room
    shorter = np.where(both_cut, room // 2, shorter)
    kept = np.where(both_cut, room - room // 2, kept)
    swap = first > second
    return (
        np.where(swap, kept, shorter).astype(np.int32),
        np.where(swap, shorter, kept).astype(np.int32),
    )


def only_first(first: Int32Array, second: Int32Array, room: int) -> tuple[Int32Array, Int32Array]:
    """The same where the second text stays whole: int32 (N,) each.

    What is left of the first is less than nothing where the second alone is too long.
    """
    return np.minimum(first, np.int32(room) - second), second


class Reader:
    """Tokenises texts, and of huge ones no more than is needed.

    Without safe cuts (None) every text is tokenised whole.
    """

    def __init__(self, cuts: SafeCuts | None) -> None:
        self._cuts = cuts

    def rows(
        self, backend: Backend, texts: list[str], special: bool, enough: int, direction: Direction
    ) -> tuple[Rows, BoolArray | None]:
        """Ids of each text, or of so much of it that they are more than ``enough``.

        The second result, bool (N,), says which texts were read whole; None
        means all. Raises LibraryFaultError as ``rows_of`` does.
        """
        characters = max(_FEWEST_CHARACTERS, _CHARACTERS_PER_TOKEN * enough)
        if self._cuts is None or max(map(len, texts), default=0) <= 2 * characters:
            return rows_of(backend, texts, special), None
        if first_unreadable(texts) is not None:  # it may stand in what would not be read
            raise LibraryFaultError("a text is not Unicode")
        return self._growing_rows(backend, texts, special, enough, direction, characters)

    def _growing_rows(
        self,
        backend: Backend,
        texts: list[str],
        special: bool,
        enough: int,
        direction: Direction,
        characters: int,
    ) -> tuple[Rows, BoolArray]:
        """``rows`` from about so many characters, and from more where those are not enough."""
        parts, whole = self._shortened(texts, characters, direction)
        rows = rows_of(backend, parts, special)
        again = np.flatnonzero(~whole & (rows.lengths <= enough))
        if len(again):
            some = [texts[i] for i in again]
            longer, whole[again] = self._growing_rows(
                backend, some, special, enough, direction, _GROWTH * characters
            )
            rows = rows.replaced(again, longer)
        return rows, whole

    def ranked_counts(
        self, backend: Backend, pair: list[str], direction: Direction
    ) -> tuple[int, int]:
        """Tokens of a pair's texts: for the one that has fewer the count, else a lower bound.

        So which text is longer is known without reading more than the shorter
        one. Raises LibraryFaultError as ``rows_of`` does.
        """
        characters = _GROWTH * _FEWEST_CHARACTERS
        while True:
            parts, whole = self._shortened(pair, characters, direction)
            first, second = rows_of(backend, parts, False).lengths.tolist()
            if whole[1] if second < first else whole[0]:
                return first, second
            characters *= _GROWTH

    def _shortened(
        self, texts: list[str], characters: int, direction: Direction
    ) -> tuple[list[str], BoolArray]:
        """About so many characters of each text, and which of them are the whole text."""
        if self._cuts is None:
            return texts, np.ones(len(texts), np.bool_)
        parts = [self._cuts.shorten(text, characters, direction) for text in texts]
        whole = [len(part) == len(text) for part, text in zip(parts, texts, strict=True)]
        return parts, np.array(whole, np.bool_)


def first_unreadable(inputs: Sequence[TextOrPair]) -> int | None:
    """The first input that is not Unicode text: it holds half of a surrogate pair."""
    for i, each in enumerate(inputs):
        for text in (each,) if isinstance(each, str) else each:
            try:
                _ = text.isascii() or text.encode("utf-16-le")  # the codec that is fastest at it
            except UnicodeEncodeError:
                return i
    return None
