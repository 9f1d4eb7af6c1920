"""Which special tokens stand around a text, and around the two of a pair.

Read off the tokenizer itself: it encodes a probe, and what it put around the
probe is the layout. So a family whose template nobody thought of works, or is
refused when it is loaded.

A layout also puts sequences together, whatever the direction: ``left`` keeps
the last tokens of a text where ``right`` keeps the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import tokenizers

from packhorse.errors import CheckpointError
from packhorse.request import Int32Array
from packhorse.tokenizing.backends import Rows, gathered
from packhorse.tokenizing.safe_cuts import Direction

_Piece = tuple[Int32Array | int, Int32Array | int]

_PROBES = ("a", "the", "1", ".", "é", "中")
"""Texts of which at least one gives a token in any tokenizer worth the name."""


@dataclass(frozen=True, slots=True)
class TextLayout:
    """``before`` text ``after``: the ids around one text, int32 each."""

    before: Int32Array
    after: Int32Array

    @property
    def num_tokens(self) -> int:
        return len(self.before) + len(self.after)

    def trimmed(self, rows: Rows, max_length: int, direction: Direction) -> Rows:
        """Rows that have this layout already, with so much text removed that each fits."""
        ends = rows.bounds[1:]
        kept = np.minimum(rows.lengths, max_length) - self.num_tokens
        text_ends = ends - len(self.after)
        text_starts = rows.bounds[:-1] + len(self.before)
        if direction == "left":
            text_starts = text_ends - kept
        return _interleaved(
            rows.ids,
            len(ends),
            (rows.bounds[:-1], len(self.before)),
            (text_starts, kept),
            (text_ends, len(self.after)),
        )


@dataclass(frozen=True, slots=True)
class PairLayout:
    """``before`` A ``between`` B ``after``: the ids around a pair, int32 each.

    ``first_segment_tail`` says how many tokens of ``between`` still have token
    type 0; the rest of it, B and ``after`` have 1. None: all types are 0.
    """

    before: Int32Array
    between: Int32Array
    after: Int32Array
    first_segment_tail: int | None

    @property
    def num_tokens(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)

    def joined(self, rows: Rows, kept: tuple[Int32Array, Int32Array], direction: Direction) -> Rows:
        """One row a pair from rows that are A, B, A, B, … without special tokens.

        ``kept`` says how many tokens of each A and each B stay, int32 (N,) each.
        """
        source = np.concatenate([self.before, self.between, self.after, rows.ids])
        bounds = rows.bounds + self.num_tokens
        starts = bounds[0:-1:2], bounds[1:-1:2]
        if direction == "left":
            starts = bounds[1::2] - kept[0], bounds[2::2] - kept[1]
        return _interleaved(
            source,
            len(kept[0]),
            (0, len(self.before)),
            (starts[0], kept[0]),
            (len(self.before), len(self.between)),
            (starts[1], kept[1]),
            (len(self.before) + len(self.between), len(self.after)),
        )

    def segment_starts(self, kept_first: Int32Array) -> Int32Array | None:
        """Where token type 1 begins in each pair, int32 (N,); None if all types are 0."""
        if self.first_segment_tail is None:
            return None
        return kept_first + np.int32(len(self.before) + self.first_segment_tail)


def _interleaved(source: Int32Array, count: int, *pieces: _Piece) -> Rows:
    """``count`` rows, each made of the same pieces of ``source``: where each starts, how long."""
    starts = np.empty((count, len(pieces)), np.int32)
    lengths = np.empty((count, len(pieces)), np.int32)
    for column, (start, length) in enumerate(pieces):
        starts[:, column] = start
        lengths[:, column] = length
    ids, bounds = gathered(source, starts.ravel(), lengths.ravel())
    return Rows(ids, bounds[:: len(pieces)].copy())


def text_layout(tokenizer: tokenizers.Tokenizer) -> TextLayout:
    """The layout of one text.

    Raises CheckpointError when the tokenizer's template is none that the
    packed layout can carry.
    """
    encoding = tokenizer.encode(_probe(tokenizer))
    parts = _parts(encoding.ids, encoding.sequence_ids)
    if parts is None or len(parts) != 2 or any(encoding.type_ids):
        raise CheckpointError(
            "the tokenizer's template for one text is not supported: it must be special tokens, "
            "the text once, special tokens, all of token type 0"
        )
    return TextLayout(*parts)


def pair_layout(tokenizer: tokenizers.Tokenizer) -> PairLayout | None:
    """The layout of a pair; None when there is none that the packed layout can carry."""
    probe = _probe(tokenizer)
    encoding = tokenizer.encode(probe, probe)
    parts = _parts(encoding.ids, encoding.sequence_ids)
    if parts is None or len(parts) != 3:
        return None
    before, between, after = parts
    types = encoding.type_ids
    if not any(types):
        return PairLayout(before, between, after, first_segment_tail=None)
    second_segment = types.index(1) if 1 in types else len(types)
    after_first = len(before) + len(tokenizer.encode(probe, add_special_tokens=False).ids)
    tail = second_segment - after_first
    rising = types == [0] * second_segment + [1] * (len(types) - second_segment)
    if not rising or not 0 <= tail <= len(between):
        return None
    return PairLayout(before, between, after, first_segment_tail=tail)


def _probe(tokenizer: tokenizers.Tokenizer) -> str:
    for probe in _PROBES:
        if tokenizer.encode(probe, add_special_tokens=False).ids:
            return probe
    raise CheckpointError("the tokenizer gives no tokens for any of " + " ".join(_PROBES))


def _parts(ids: Sequence[int], sequence_ids: Sequence[int | None]) -> list[Int32Array] | None:
    """The special tokens before, between and after the texts; None if those are not in order."""
    parts: list[list[int]] = [[]]
    texts = []
    for text, run in groupby(zip(sequence_ids, ids, strict=True), key=lambda pair: pair[0]):
        if text is None:
            parts[-1] = [token for _, token in run]
        else:
            texts.append(text)
            parts.append([])
    if texts not in ([0], [0, 1]):
        return None
    return [np.array(part, np.int32) for part in parts]
