"""Long texts in overlapping windows, and one row for each text from the rows of its windows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from packhorse.request import Answer, Float32Array, Sequences
from packhorse.tokenizing.offsets import Spans
from packhorse.tokenizing.tokenizer import Tokenizer


class Windows:
    """How the texts of one call are read: each as one window, or several if it is too long.

    stride  how many tokens neighbouring windows of a text share

    A text's row is the mean of its windows' rows, each weighted by the window's number of tokens,
    special ones included; so that of a text which fits is what it is without windows.
    """

    def __init__(self, tokenizer: Tokenizer, stride: int) -> None:
        self._tokenizer = tokenizer
        self._stride = stride
        self._read: list[Spans] = []

    def encode(self, texts: Sequence[str]) -> Sequences:
        """The windows of the next texts, in order. Raises as ``encode_with_offsets`` does."""
        spans = self._tokenizer.encode_with_offsets(texts, stride=self._stride)
        self._read.append(spans)
        return spans.sequences

    def per_text(self, rows: Float32Array) -> Float32Array:
        """One row a text, (texts, width), of one a window, (windows, width); both float32."""
        texts, means = [], []
        window = 0
        for spans in self._read:
            firsts = np.flatnonzero(np.diff(spans.text_of, prepend=-1))
            weights = spans.sequences.lengths.astype(np.float64)[:, None]
            own = rows[window : window + len(weights)]
            window += len(weights)
            texts.append(np.add.reduceat(own * weights, firsts))
            means.append(np.add.reduceat(weights, firsts))
        summed: Float32Array = (np.concatenate(texts) / np.concatenate(means)).astype(np.float32)
        return summed

    def answer(self, answer: Answer) -> Answer:
        """The same of an answer that has no errors."""
        values = self.per_text(answer.values)
        return Answer(values, np.zeros(len(values), np.uint8))
