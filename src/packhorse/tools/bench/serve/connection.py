"""One connection of a load process: one request at a time, and its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import cast

from httptools import HttpParserError, HttpResponseParser

from packhorse.tools.bench.serve.answers import Check
from packhorse.tools.bench.serve.bodies import Request
from packhorse.tools.bench.serve.tally import TIMINGS, Fault, Tally

NAN = float("nan")

TIMING_HEADERS = {
    name: place for place, lower in enumerate(TIMINGS.values()) for name in (lower, lower.title())
}
"""Where their values stand in a row, after the number of texts. Names of headers may be written
either way; to look at each in lower case took a sixth of this process's time."""


Told = Callable[["Connection"], None]


class Connection(asyncio.Protocol):
    """Sends a request when it is told to, and writes down what became of it.

    free   is called with it when it can take a request
    lost   when it is gone; a request that it had is in the tally then

    The parser calls the methods whose names begin with ``on_``.
    """

    def __init__(self, free: Told, lost: Told, tally: Tally, check: Check) -> None:
        self._free = free
        self._lost = lost
        self._tally = tally
        self._check = check
        self._transport: asyncio.Transport | None = None
        self._request: Request | None = None
        self._intended = 0.0
        self._sent = self._heard = 0.0
        self._parser = HttpResponseParser(self)
        self._await_answer()

    def _await_answer(self) -> None:
        self._timings = [NAN] * len(TIMINGS)
        self._body: list[bytes] = []
        self._is_complete = self._is_kept = False

    @property
    def is_waiting(self) -> bool:
        """Whether a request has no answer yet."""
        return self._request is not None

    def send(self, request: Request, intended: float) -> None:
        """Send; ``intended`` is when this should have happened, from which latency counts."""
        assert self._transport is not None
        self._request, self._intended = request, intended
        self._sent = perf_counter()
        self._transport.write(request.data)

    def give_up_if_older(self, moment: float) -> None:
        """Close when what was sent before this moment has no answer yet."""
        if self._request is not None and self._sent < moment:
            self._end(Fault.TIMEOUT, 0, perf_counter())
            self.abort()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._free(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._request is not None:
            self._end(Fault.CLOSED, 0, perf_counter())
        self._lost(self)

    def data_received(self, data: bytes) -> None:
        self._heard = perf_counter()  # what is done with the answer is not the server's time
        try:
            self._parser.feed_data(data)
        except HttpParserError:
            self._fail_to_understand()
            return
        if self._is_complete:
            self._take_answer()

    def on_header(self, name: bytes, value: bytes) -> None:
        place = TIMING_HEADERS.get(name)
        if place is not None:
            self._timings[place] = float(value)

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._is_complete = True
        self._is_kept = self._parser.should_keep_alive()  # not known any more a moment later

    def _take_answer(self) -> None:
        request, status = self._request, self._parser.get_status_code()
        if request is None:  # answered without a question: 408 before it hangs up, for instance
            self.abort()
            return
        fault = Fault.NONE
        if 200 <= status < 300:
            wrong = self._check(b"".join(self._body), request.texts)
            if wrong is not None:
                self._tally.complain(wrong)
                fault = Fault.WRONG_ANSWER
        is_kept = self._is_kept
        self._end(fault, status, self._heard)
        if not is_kept:
            self.abort()
        elif self._transport is not None and not self._transport.is_closing():
            self._free(self)

    def _fail_to_understand(self) -> None:
        if self._request is not None:
            self._end(Fault.NOT_HTTP, 0, self._heard)
        self.abort()

    def _end(self, fault: Fault, status: int, ended: float) -> None:
        """Write down the request, and be ready for another."""
        assert self._request is not None
        texts = self._request.texts or 1
        self._tally.add(self._intended, ended, status, fault, texts, *self._timings)
        self._request = None
        self._await_answer()
