"""An event loop that does not sleep for a moment after news, while few requests wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from packhorse.busy_polling import POLL_SECONDS

FEW = 2
"""Requests in flight in a front end up to which their latency is worth a core."""


class BusyLoop:
    """Has the running loop look for events again and again, for ``POLL_SECONDS`` after ``stir``."""

    def __init__(self, in_flight: Callable[[], int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._in_flight = in_flight
        self._until = 0.0
        self.is_awake = False

    def stir(self) -> None:
        """There was news, and more may follow at once."""
        self._until = time.monotonic() + POLL_SECONDS
        if not self.is_awake:
            self.is_awake = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Called once in each turn of the loop, which waits for nothing as long as it is."""
        if self._in_flight() <= FEW and time.monotonic() < self._until:
            self._loop.call_soon(self._turn)
        else:
            self.is_awake = False
