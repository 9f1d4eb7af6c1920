"""How the packed engine cuts a row of texts into batches, and what each batch is padded to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from packhorse.engine.cuda_graphs import sequence_buckets, token_buckets
from packhorse.request import Int32Array, Sequences, bounds_of
from packhorse.tools.bench.flops import ModelSize, packed


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Bounds of a batch, and which optimisations change what it computes.

    graphs  whether batches are padded up to the buckets of captured graphs
    """

    max_tokens: int
    max_sequences: int
    first_token_only: bool = True
    graphs: bool = False

    def cuts(self, bounds: Int32Array) -> Iterator[tuple[int, int]]:
        """First and last (exclusive) sequence of each batch: in order, each as large as it may.

        This is what the scheduler does with one request of all these sequences.
        """
        start, count = 0, len(bounds) - 1
        while start < count:
            fits = int(np.searchsorted(bounds, bounds[start] + self.max_tokens, side="right")) - 1
            stop = min(max(fits, start + 1), start + self.max_sequences, count)
            yield start, stop
            start = stop

    def batches(self, sequences: Sequences) -> Iterator[Sequences]:
        """The same batches, as sequences."""
        for start, stop in self.cuts(sequences.cu_seqlens):
            yield sequences.slice(start, stop)

    def padded_sizes(self, tokens: int, sequences: int) -> tuple[int, int]:
        """Tokens and sequences that are computed for a batch."""
        if not self.graphs:
            return tokens, sequences
        return (
            _bucket(token_buckets(self.max_tokens), tokens),
            _bucket(sequence_buckets(self.max_sequences), sequences),
        )

    def executed_flops(self, size: ModelSize, lengths: Int32Array) -> int:
        """Matrix products over texts of these lengths, spare tokens of buckets included."""
        flops = 0
        for start, stop in self.cuts(bounds_of(lengths)):
            batch = lengths[start:stop]
            tokens, rows = self.padded_sizes(int(batch.sum()), len(batch))
            flops += packed(
                size, batch, first_token_only=self.first_token_only, tokens=tokens, rows=rows
            )
        return flops


def _bucket(buckets: list[int], least: int) -> int:
    return buckets[int(np.searchsorted(buckets, least))]
