"""What became of every request, a row of numbers each."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

import numpy as np
from numpy.typing import NDArray


class Fault(IntEnum):
    """What went wrong with a request that has no right answer."""

    NONE = 0
    REFUSED = 1
    CLOSED = 2
    TIMEOUT = 3
    NOT_HTTP = 4
    WRONG_ANSWER = 5
    NOT_SENT = 6


FAULT_NAMES = {
    Fault.REFUSED: "could not connect",
    Fault.CLOSED: "connection closed before the answer",
    Fault.TIMEOUT: "no answer in time",
    Fault.NOT_HTTP: "answer is not HTTP",
    Fault.WRONG_ANSWER: "wrong answer",
    Fault.NOT_SENT: "no connection became free in time",
}

TIMINGS = {
    "tokens": b"x-compute-tokens",
    "total": b"x-total-time",
    "queue": b"x-queue-time",
    "tokenization": b"x-tokenization-time",
    "inference": b"x-inference-time",
}
"""What answers say of themselves, by column, and in which header; times in ms. NaN where one does
not say it."""

COLUMNS = (
    "intended",  # when it should be sent, seconds of the monotonic clock
    "ended",  # when its answer was there, or it was given up
    "status",  # of HTTP; 0 when there is no answer
    "fault",  # a Fault
    "texts",  # it asked about
    *TIMINGS,
)

_ROW = Struct(f"{len(COLUMNS)}d")


class Tally:
    """Rows as they come. Eight bytes a number: an hour at 5,000 requests a second is 1.3 GB."""

    def __init__(self) -> None:
        self._numbers = bytearray()
        self.wrong: list[str] = []
        """What the first wrong answers had wrong."""

    def add(self, *row: float) -> None:
        """One request that has ended; a number for each of COLUMNS."""
        self._numbers += _ROW.pack(*row)

    def complain(self, what: str) -> None:
        """Keep what is wrong with an answer, if it is among the first."""
        if len(self.wrong) < 5:
            self.wrong.append(what)

    def table(self) -> NDArray[np.float64]:
        """(requests, COLUMNS) float64."""
        return np.frombuffer(self._numbers, np.float64).reshape(-1, len(COLUMNS))
