"""When requests are sent: in a closed loop after each answer, in an open loop by a schedule."""

from __future__ import annotations

import asyncio
import itertools
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from time import perf_counter

import numpy as np

from packhorse.tools.bench.serve.bodies import Request
from packhorse.tools.bench.serve.connection import NAN, Connection
from packhorse.tools.bench.serve.tally import TIMINGS, Fault, Tally
from packhorse.tools.bench.serve.timer import Timer


class Loop:
    """What both kinds have in common: requests in turn, and connections that can take one.

    late      seconds by which the schedule was missed because this process was busy
    backlog   most requests that were due and waited for a connection
    """

    def __init__(self, requests: Sequence[Request], tally: Tally) -> None:
        self._requests: Iterator[Request] = itertools.cycle(requests)
        self._tally = tally
        self._idle: dict[Connection, None] = {}  # the one that was free first goes first
        self._is_running = False
        self.late = array("d")
        self.backlog = 0

    def free(self, connection: Connection) -> None:
        """A connection can take a request."""
        raise NotImplementedError

    def lost(self, connection: Connection) -> None:
        """A connection is gone."""
        self._idle.pop(connection, None)

    def refuse(self) -> None:
        """There was no connection to be had: a request that waits for one has failed."""
        raise NotImplementedError

    async def run(self, start: float, end: float) -> None:
        """Send from ``start`` until ``end``; moments of ``perf_counter``."""
        raise NotImplementedError

    def waits(self) -> bool:
        """Whether requests are due that were not sent."""
        return False

    def give_up_before(self, moment: float) -> None:
        """Requests that were due before this moment and were not sent have failed."""

    def _fail(self, fault: Fault, intended: float) -> None:
        texts = next(self._requests).texts or 1
        unknown = [NAN] * len(TIMINGS)
        self._tally.add(intended, perf_counter(), 0, fault, texts, *unknown)


class ClosedLoop(Loop):
    """Each connection sends its next request when it has the answer to its last."""

    def free(self, connection: Connection) -> None:
        if self._is_running:
            connection.send(next(self._requests), perf_counter())
        else:
            self._idle[connection] = None

    def refuse(self) -> None:
        if self._is_running:
            self._fail(Fault.REFUSED, perf_counter())

    async def run(self, start: float, end: float) -> None:
        await asyncio.sleep(start - perf_counter())
        self._is_running = True
        waiting, self._idle = self._idle, {}
        for connection in waiting:
            self.free(connection)
        await asyncio.sleep(end - perf_counter())
        self._is_running = False


class OpenLoop(Loop):
    """Requests are due at the moments of a Poisson process, whatever became of those before.

    One that finds no free connection waits for it, and its latency counts all the same from the
    moment when it was due: a server that stalls cannot slow down those who measure it.
    """

    def __init__(self, requests: Sequence[Request], tally: Tally, rate: float, seed: int) -> None:
        super().__init__(requests, tally)
        self._rate = rate
        self._random = np.random.default_rng(seed)
        self._due: deque[float] = deque()
        self._waiting: deque[float] = deque()
        self._timer: Timer | None = None

    async def run(self, start: float, end: float) -> None:
        self._due = deque(self._schedule(start, end))
        self._timer = Timer(asyncio.get_running_loop(), self._tick)
        if self._due:
            self._timer.set(self._due[0])
        await asyncio.sleep(end - perf_counter())
        while self._due:  # this process did not get to it in time
            await asyncio.sleep(0.001)
        self._timer.close()

    def _schedule(self, start: float, end: float) -> list[float]:
        """Moments from start to end: given their number, those of a Poisson process are uniform."""
        number = self._random.poisson(self._rate * (end - start))
        return np.sort(self._random.uniform(start, end, number)).tolist()  # type: ignore[no-any-return]

    def _tick(self) -> None:
        assert self._timer is not None
        due, now = self._due, perf_counter()
        while due and due[0] <= now:
            intended = due.popleft()
            self.late.append(now - intended)
            if self._idle:
                connection = next(iter(self._idle))
                del self._idle[connection]
                connection.send(next(self._requests), intended)
            else:
                self._waiting.append(intended)
        self.backlog = max(self.backlog, len(self._waiting))
        if due:
            self._timer.set(due[0])

    def free(self, connection: Connection) -> None:
        if self._waiting:
            connection.send(next(self._requests), self._waiting.popleft())
        else:
            self._idle[connection] = None

    def refuse(self) -> None:
        if self._waiting:
            self._fail(Fault.REFUSED, self._waiting.popleft())

    def waits(self) -> bool:
        return bool(self._waiting)

    def give_up_before(self, moment: float) -> None:
        while self._waiting and self._waiting[0] < moment:
            self._fail(Fault.NOT_SENT, self._waiting.popleft())
