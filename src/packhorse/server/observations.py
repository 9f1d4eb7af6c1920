"""The numbers of answered requests, kept for a moment and then counted together.

Counting one request in four histograms costs as much as parsing it; counting
hundreds at once costs little more than one.
"""

from __future__ import annotations

import numpy as np

from packhorse import metrics
from packhorse.tokenizing.tokenizer import Tokenizer

_MOST = 1000


class Observations:
    """For one front end's slot of the board."""

    def __init__(self, slot: memoryview[float]) -> None:
        self._slot = slot
        self._rows: list[tuple[float, ...]] = []

    def add(
        self,
        total: float,
        tokenization: float,
        queue_wait: float,
        inference: float,
        sequences: int,
        tokens: int,
        truncated: int,
    ) -> None:
        """Keep one request: four times in seconds, and what it consisted of."""
        self._rows.append(
            (total, tokenization, queue_wait, inference, sequences, tokens, truncated)
        )
        if len(self._rows) >= _MOST:
            self.flush()

    def flush(self) -> None:
        """Count what was kept; called now and then, and before the metrics are shown."""
        if not self._rows:
            return
        columns = np.array(self._rows, np.float64).T
        self._rows.clear()
        slot = self._slot
        for histogram, column in zip(
            (
                metrics.TOTAL_TIME,
                metrics.TOKENIZATION_TIME,
                metrics.QUEUE_TIME,
                metrics.INFERENCE_TIME,
            ),
            columns,
            strict=False,
        ):
            histogram.observe_all(slot, column)
        sums = columns[4:].sum(axis=1).tolist()
        for counter, number in zip(
            (metrics.SEQUENCES, metrics.TOKENS, metrics.TRUNCATED), sums, strict=True
        ):
            slot[counter.first] += number


class ShadowCounts:
    """Carries what a tokenizer counted of its shadow check into a slot of the board.

    By differences: the slot also holds what the processes before this one counted.
    """

    def __init__(self, tokenizer: Tokenizer, slot: memoryview[float]) -> None:
        self._tokenizer = tokenizer
        self._slot = slot
        self._checked = self._differences = 0

    def count(self) -> None:
        """Add what is new."""
        checked, differences = self._tokenizer.shadow_counts
        self._slot[metrics.SHADOW_CHECKED.first] += checked - self._checked
        self._slot[metrics.SHADOW_DIFFERENCES.first] += differences - self._differences
        self._checked, self._differences = checked, differences
