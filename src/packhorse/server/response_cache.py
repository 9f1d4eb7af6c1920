"""Answers that are kept for those who ask the same again, within a bound of memory."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from packhorse.request import Completions
from packhorse.server.pending import Block, Key

ENTRY_BYTES = 2000
"""Python's own cost of an entry: a key, and an answer's arrays."""

LARGEST_SHARE = 8
"""An answer larger than this part of the limit is not kept: it would push out all others."""


class ResponseCache:
    """The most recently used answers.

    limit       bytes of all of them
    text_bytes  of the JSON that is written once and kept with an answer, at most
    """

    def __init__(self, limit: int, text_bytes: int = 0) -> None:
        self._limit = limit
        self._text_bytes = text_bytes
        self._blocks: OrderedDict[tuple[int, Key], Block] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def get(self, key: tuple[int, Key]) -> Block | None:
        """A block of one row, or None."""
        block = self._blocks.get(key)
        if block is not None:
            self._blocks.move_to_end(key)
        return block

    def put(self, key: tuple[int, Key], block: Block, row: int) -> None:
        """Keep a copy of a row that is no error."""
        if key in self._blocks or block.completions.codes[row]:
            return
        kept = Block(_row_of(block.completions, row))
        size = self._size(key, kept)
        if size > self._limit // LARGEST_SHARE:
            return
        self._blocks[key] = kept
        self.bytes += size
        while self.bytes > self._limit:
            self.bytes -= self._size(*self._blocks.popitem(last=False))

    def _size(self, key: tuple[int, Key], block: Block) -> int:
        return ENTRY_BYTES + len(key[1][0]) + block.completions.values.nbytes + self._text_bytes


def _row_of(completions: Completions, row: int) -> Completions:
    """One sequence's part, copied: a view would keep the whole message."""
    counts = completions.row_counts
    if counts is None:
        rows = slice(row, row + 1)
    else:
        start = int(counts[:row].sum())
        rows = slice(start, start + int(counts[row]))
    return Completions(
        tickets=np.zeros(1, np.uint64),
        offsets=np.zeros(1, np.int32),
        counts=np.ones(1, np.int32),
        codes=np.zeros(1, np.uint8),
        values=completions.values[rows].copy(),
        queue_wait=np.zeros(1, np.float32),
        inference=0.0,
        row_counts=None if counts is None else counts[row : row + 1].copy(),
    )
