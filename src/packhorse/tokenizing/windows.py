"""Long texts in overlapping windows, and one row for each text from the rows of its windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from packhorse.request import Answer, Float32Array, Sequences
from packhorse.tokenizing.offsets import Spans
from packhorse.tokenizing.prompts import pooled_after
from packhorse.tokenizing.tokenizer import Tokenizer


class Windows:
    """How the texts of one call are read: each as one window, or several if it is too long.

    stride  how many tokens neighbouring windows of a text share

    A text's row is the mean of its windows' rows, each weighted by the window's number of tokens,
    special ones included; so that of a text which fits is what it is without windows.

    left_out  tokens at the start of each text that are not pooled, and have no weight: a prompt
    """

    def __init__(self, tokenizer: Tokenizer, stride: int, left_out: int = 0) -> None:
        self._tokenizer = tokenizer
        self._stride = stride
        self._left_out = left_out
        self._read: list[Spans] = []

    def encode(self, texts: Sequence[str]) -> Sequences:
        """The windows of the next texts, in order. Raises as ``encode_with_offsets`` does."""
        spans = self._tokenizer.encode_with_offsets(texts, stride=self._stride)
        if self._left_out:
            spans = self._without_prompt(spans)
        self._read.append(spans)
        return spans.sequences

    @property
    def text_of(self) -> list[int]:
        """The text that each window is of, by its number among all that were read."""
        numbers: list[int] = []
        for spans in self._read:
            before = numbers[-1] + 1 if numbers else 0
            numbers += (spans.text_of + before).tolist()
        return numbers

    def per_text(self, rows: Float32Array) -> Float32Array:
        """One row a text, (texts, width), of one a window, (windows, width); both float32."""
        texts, means = [], []
        window = 0
        for spans in self._read:
            firsts = np.flatnonzero(np.diff(spans.text_of, prepend=-1))
            marks = spans.sequences.marks
            pooled = spans.sequences.lengths - (0 if marks is None else marks)
            weights = pooled.astype(np.float64)[:, None]
            own = rows[window : window + len(weights)]
            window += len(weights)
            texts.append(np.add.reduceat(own * weights, firsts))
            means.append(np.add.reduceat(weights, firsts))
        summed: Float32Array = (np.concatenate(texts) / np.concatenate(means)).astype(np.float32)
        return summed

    def _without_prompt(self, spans: Spans) -> Spans:
        """With marks after the prompt, which stands in the first window of each text."""
        after = pooled_after(spans.sequences, self._left_out).marks
        is_first = np.diff(spans.text_of, prepend=-1) > 0
        assert after is not None
        marks = np.where(is_first, after, 0).astype(np.int32)
        return replace(spans, sequences=replace(spans.sequences, marks=marks))

    def answer(self, answer: Answer) -> Answer:
        """The same of an answer that has no errors."""
        values = self.per_text(answer.values)
        return Answer(values, np.zeros(len(values), np.uint8))
