"""The numbers of answered requests, kept for a moment and then counted together.

Counting one request in four histograms costs as much as parsing it; counting
hundreds at once costs little more than one.
"""

from __future__ import annotations

import numpy as np

from packhorse import metrics

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
