"""How the C library keeps memory that was freed, for a process that computes on the CPU.

Every operation of a forward pass allocates its result. By default glibc returns
blocks of more than 128 KiB to the kernel, which clears each page anew: with
bfloat16 and AMX that took 40% of the time of a MiniLM. So freed memory stays
in the process, which then holds what its largest batch needed.
"""

from __future__ import annotations

import ctypes
import logging
import sys

logger = logging.getLogger(__name__)

# From glibc's malloc.h, see mallopt(3).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEEP = 1 << 30
"""Bytes: blocks up to this come from memory that is kept, and so much of it may lie free."""


def keep_freed_memory() -> bool:
    """Of the whole process, until it ends. False where the C library is not glibc."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):  # musl, for one, has a mallopt that does nothing
        return False
    kept = bool(libc.mallopt(M_MMAP_THRESHOLD, KEEP)) and bool(libc.mallopt(M_TRIM_THRESHOLD, KEEP))
    logger.debug("freed memory is kept: %s", kept)
    return kept
