"""A timer of microseconds for an event loop, whose own timers count in milliseconds."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable

from packhorse.errors import ConfigError

CLOCK_MONOTONIC = 1
ABSOLUTE = 1


class _Times(ctypes.Structure):
    """struct itimerspec of timerfd_settime(2): an interval, which stays 0, and a moment."""

    _fields_ = (
        ("interval_seconds", ctypes.c_long),
        ("interval_nanoseconds", ctypes.c_long),
        ("seconds", ctypes.c_long),
        ("nanoseconds", ctypes.c_long),
    )


class Timer:
    """Calls back at moments of ``perf_counter``, which is the monotonic clock on Linux.

    Raises ConfigError where the system has no timerfd.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        try:
            library = ctypes.CDLL(None, use_errno=True)
            self._settime = library.timerfd_settime
            self._fd: int = library.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        except (AttributeError, TypeError):
            raise ConfigError("an open loop (--rate) needs Linux's timerfd") from None
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._loop = loop
        self._callback = callback
        loop.add_reader(self._fd, self._expired)

    def set(self, moment: float) -> None:
        """Call back at this moment, at once if it has passed; an earlier setting is forgotten."""
        nanoseconds = max(1, int(moment * 1e9))
        times = _Times(0, 0, *divmod(nanoseconds, 1_000_000_000))
        if self._settime(self._fd, ABSOLUTE, ctypes.byref(times), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        """Call back no more."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _expired(self) -> None:
        os.read(self._fd, 8)
        self._callback()
