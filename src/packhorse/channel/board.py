"""Shared words of memory: each process writes its own slot, all processes read all slots.

For numbers that many look at and nobody needs to be told of: counters, load,
heartbeats. A word is a float64 and is written whole, by one process only, so
no lock is needed; two words read together may be from different moments. The
memory is anonymous: it outlives every process but the last that has it open,
so what a killed process counted is kept, and nothing is left on disk.
"""

from __future__ import annotations

import mmap
import os
import tempfile

_WORD = 8
_LINE = 64  # bytes of a cache line: a slot shares none with its neighbours


class Board:
    """``slots`` slots of ``words`` words, at 0 when new."""

    def __init__(self, fd: int, slots: int, words: int) -> None:
        self.fd = fd
        self.words = words
        self._stride = _stride(words)
        self._memory = mmap.mmap(fd, slots * self._stride * _WORD)
        cells = memoryview(self._memory).cast("d")
        self.slots = [
            cells[slot * self._stride : slot * self._stride + words] for slot in range(slots)
        ]

    @classmethod
    def create(cls, slots: int, words: int) -> Board:
        """A new board; its ``fd`` is lent to the processes that share it."""
        fd = anonymous_file("packhorse-board")
        os.ftruncate(fd, slots * _stride(words) * _WORD)
        return cls(fd, slots, words)

    def total(self, word: int) -> float:
        """The sum of one word over all slots."""
        return sum([slot[word] for slot in self.slots])


def _stride(words: int) -> int:
    """Words from one slot to the next."""
    per_line = _LINE // _WORD
    return -(-words // per_line) * per_line


def anonymous_file(name: str) -> int:
    """Memory that can be lent by its descriptor; nothing is left on disk."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:  # unlinked at once
        return os.dup(file.fileno())
