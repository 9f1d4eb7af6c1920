"""What an engine has on its device, written down where its death leaves it.

A batch's ids and bounds are copied to shared memory before it is launched
(100 KB take some 10 µs) and struck out when its output is there. What is not
struck out after a death was on the device: each of those sequences may be the
one that killed the engine. Nothing is hashed, and nobody reads, until then.

The memory is anonymous and sparse: a page takes no more than was written to it.
"""

from __future__ import annotations

import mmap
import os
import struct
from hashlib import blake2b

import numpy as np

from packhorse.channel.board import anonymous_file
from packhorse.request import Int32Array, Sequences

Fingerprint = tuple[int, int]
"""Length in tokens, and 64 bits of a hash over ids and segment."""

PAGES = 128
"""Batches that can be written down at once: more than any runner has in flight."""

_PAGE_ROOM = 1 << 30  # from one page to the next, in the sparse file
_HEADER = struct.Struct("=QQQ")  # sequences, or 0 for a page struck out; tokens; has segments


class Journal:
    """The engine's side: it writes."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pages: dict[int, mmap.mmap] = {}
        self._free = list(reversed(range(PAGES)))
        on_device(fd)  # what a predecessor left

    @staticmethod
    def create() -> int:
        """A new journal: the descriptor to lend to one engine after the other."""
        fd = anonymous_file("packhorse-journal")
        os.ftruncate(fd, PAGES * _PAGE_ROOM)
        return fd

    def enter(self, batch: Sequences) -> int:
        """Write a batch down; returns its page, for ``strike``."""
        page: int = self._free.pop()
        arrays = [batch.cu_seqlens, batch.input_ids]
        if batch.segment_starts is not None:
            arrays.append(batch.segment_starts)
        data = b"".join([np.ascontiguousarray(array, np.int32).data for array in arrays])
        size = _HEADER.size + len(data)
        if page not in self._pages or size > len(self._pages[page]):
            room = max(1 << 20, 2 * size)
            self._pages[page] = mmap.mmap(self._fd, room, offset=page * _PAGE_ROOM)
        self._pages[page][_HEADER.size : size] = data
        # Last, so that a page is valid or struck out, whenever the process dies.
        self._commit(page, len(batch), batch.num_tokens, batch.segment_starts is not None)
        return page

    def strike(self, page: int) -> None:
        """The batch of this page is over."""
        self._commit(page, 0, 0, False)
        self._free.append(page)

    def _commit(self, page: int, sequences: int, tokens: int, has_segments: bool) -> None:
        _HEADER.pack_into(self._pages[page], 0, sequences, tokens, has_segments)


def on_device(fd: int) -> list[Fingerprint]:
    """The sequences that a dead engine had on its device, and clears the journal."""
    found: list[Fingerprint] = []
    for page in range(PAGES):
        start = page * _PAGE_ROOM
        sequences, tokens, has_segments = _HEADER.unpack(os.pread(fd, _HEADER.size, start))
        if not sequences:
            continue
        counts = [sequences + 1, tokens] + [sequences] * has_segments
        data = os.pread(fd, 4 * sum(counts), start + _HEADER.size)
        bounds, ids, *rest = np.split(np.frombuffer(data, np.int32), np.cumsum(counts)[:-1])
        found += fingerprints(ids, bounds, rest[0] if rest else None)
        os.pwrite(fd, bytes(_HEADER.size), start)
    return found


def fingerprints(
    ids: Int32Array, bounds: Int32Array, segment_starts: Int32Array | None
) -> list[Fingerprint]:
    """One for each sequence, from the arrays of ``Sequences``."""
    data = ids.tobytes()
    found = []
    for row, (start, stop) in enumerate(zip(bounds.tolist(), bounds[1:].tolist(), strict=False)):
        length = stop - start
        segment = length if segment_starts is None else int(segment_starts[row])
        digest = blake2b(data[4 * start : 4 * stop], digest_size=8, salt=b"%d" % segment)
        found.append((length, int.from_bytes(digest.digest())))
    return found
