"""Whose answers are whose: those of one batch, divided by front end."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from packhorse.channel.codec import NUMBER_SHIFT
from packhorse.request import Completions, bounds_of, rows_of_pieces


def shares_of(completions: Completions) -> Iterator[tuple[int, Completions]]:
    """The number of each front end and its parts, in their order."""
    tickets = completions.tickets
    numbers = tickets >> np.uint64(NUMBER_SHIFT)
    if len(numbers) > 1 and np.count_nonzero(numbers != numbers[0]):
        yield from _divided(completions, numbers)
    else:
        yield int(numbers[0]), completions


def _divided(
    completions: Completions, numbers: np.ndarray[tuple[int], np.dtype[np.uint64]]
) -> Iterator[tuple[int, Completions]]:
    """The same where there are several: sorted once, so that each has slices."""
    order = np.argsort(numbers, kind="stable")
    numbers = numbers[order]
    edges = (np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist()
    counts = completions.counts[order]
    bounds = bounds_of(counts)
    sequences = rows_of_pieces(bounds_of(completions.counts)[:-1][order], bounds)
    rows, row_counts, row_bounds = sequences, completions.row_counts, None
    if row_counts is not None:
        starts = bounds_of(row_counts)[:-1][sequences]
        row_counts = row_counts[sequences]
        row_bounds = bounds_of(row_counts)
        rows = rows_of_pieces(starts, row_bounds)
    tickets = completions.tickets[order]
    offsets, queue_wait = completions.offsets[order], completions.queue_wait[order]
    codes, values = completions.codes[sequences], completions.values[rows]
    for start, stop in zip([0, *edges], [*edges, len(order)], strict=True):
        first, last = int(bounds[start]), int(bounds[stop])
        begin, end = (first, last) if row_bounds is None else (row_bounds[first], row_bounds[last])
        yield (
            int(numbers[start]),
            Completions(
                tickets[start:stop],
                offsets[start:stop],
                counts[start:stop],
                codes[first:last],
                values[begin:end],
                queue_wait[start:stop],
                completions.inference,
                None if row_counts is None else row_counts[first:last],
            ),
        )
