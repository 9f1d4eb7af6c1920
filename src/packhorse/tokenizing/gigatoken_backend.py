"""gigatoken behind ``Backend``: BPE at a few microseconds a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from packhorse.request import bounds_of
from packhorse.tokenizing.backends import Rows, TokenizersBackend, may_use_threads
from packhorse.tokenizing.special_tokens import text_layout

FEW = 64
"""Below so many texts one call each is quicker: a batch costs 300 µs before it starts."""

MOST_CHARACTERS = 4_000_000
"""Texts of a call times its longest: a batch comes back padded, as a matrix of 4 bytes a place."""


class GigatokenBackend:
    """gigatoken, without the library awkward, in whose arrays it would give packed rows.

    It knows nothing of special tokens: those that `tokenizers` puts around a
    text are put there as ids.

    Raises ImportError where it is not installed, and gigatoken's RuntimeError
    for what is not BPE.
    """

    name = "gigatoken"

    def __init__(
        self, text: str, reference: TokenizersBackend, parallel: bool | None = None
    ) -> None:
        from gigatoken.gigatoken_rs import PadTruncate, load_hf_json

        self._library = load_hf_json(text)
        layout = text_layout(reference.library)
        self._around = layout.before.astype(np.uint32), layout.after.astype(np.uint32)
        self._with_special = PadTruncate(
            0, prefix=layout.before.tolist(), suffix=layout.after.tolist()
        )
        self._without = PadTruncate(0)
        self._parallel = parallel

    def rows(self, texts: Sequence[str], special: bool) -> Rows:
        if len(texts) < FEW:
            return self._one_by_one(texts, special)
        parts = [self._batch(list(part), special) for part in _parts(texts)]
        if len(parts) == 1:
            return parts[0]
        lengths = np.concatenate([part.lengths for part in parts])
        return Rows(np.concatenate([part.ids for part in parts]), bounds_of(lengths))

    def _one_by_one(self, texts: Sequence[str], special: bool) -> Rows:
        encoded = [self._library.encode(text) for text in texts]
        lengths = np.fromiter(map(len, encoded), np.int32, len(encoded))
        if special:
            before, after = self._around
            encoded = [part for ids in encoded for part in (before, ids, after)]
            lengths += np.int32(len(before) + len(after))
        ids = np.concatenate(encoded) if encoded else np.empty(0, np.uint32)
        return Rows(ids.view(np.int32), bounds_of(lengths))

    def _batch(self, texts: list[str], special: bool) -> Rows:
        matrix, lengths = self._library.encode_batch_padded(
            texts,
            self._with_special if special else self._without,
            parallel=may_use_threads(self._parallel),
        )
        ids = matrix[np.arange(matrix.shape[1]) < lengths[:, None]]
        return Rows(ids.view(np.int32), bounds_of(lengths.astype(np.int32)))


def _parts(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Runs of texts whose matrix stays small; a text that is too long for that is by itself."""
    first, longest = 0, 0
    for i, text in enumerate(texts):
        longest = max(longest, len(text))
        if i > first and (i + 1 - first) * longest > MOST_CHARACTERS:
            yield texts[first:i]
            first, longest = i, len(text)
    yield texts[first:]
