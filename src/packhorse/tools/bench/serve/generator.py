"""A load process: connects, sends and writes down; one of several."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from packhorse.errors import ConfigError
from packhorse.tools.bench.serve.bodies import Request, check_of, requests_of
from packhorse.tools.bench.serve.connection import Connection
from packhorse.tools.bench.serve.loops import ClosedLoop, Loop, OpenLoop
from packhorse.tools.bench.serve.plan import Plan
from packhorse.tools.bench.serve.tally import Tally

CONNECT_SECONDS = 20.0
"""By then all connections must be there, or the run does not begin."""

RETRY_SECONDS = 0.02
"""Between attempts to connect while a run goes on."""

BEAT_SECONDS = 0.02
"""How often the event loop is asked whether it is late."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one process has to report.

    table        (requests, tally.COLUMNS) float64
    wrong        what the first wrong answers had wrong
    cpu          seconds of CPU a second while measuring
    beats        seconds by which its event loop was late, sampled while measuring
    late         seconds by which it missed its schedule (open loop)
    backlog      most requests that were due and waited for a connection
    reconnects   connections that were made anew
    distinct     different bodies that it has
    """

    table: NDArray[np.float64]
    wrong: list[str]
    cpu: float
    beats: NDArray[np.float64]
    late: NDArray[np.float64]
    backlog: int
    reconnects: int
    distinct: int


def serve_parent(process: int, pipe: Pipe) -> None:
    """The life of the process: hear the plan, tell None (ready), run when told to, tell of it.

    Instead of either it may tell a ConfigError.
    """
    plan = pipe.recv()
    requests = requests_of(plan, process)
    gc.freeze()
    gc.disable()  # nothing below makes many cycles, and a pause would count as the server's
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            answer: Share | ConfigError = runner.run(_generate(plan, process, requests, pipe))
        except ConfigError as error:
            answer = error
    pipe.send(answer)


async def _generate(plan: Plan, process: int, requests: list[Request], pipe: Pipe) -> Share:
    return await _Generator(plan, process, requests, pipe).run()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


class _Generator:
    """Keeps the connections, and lets the loop send over them."""

    def __init__(self, plan: Plan, process: int, requests: list[Request], pipe: Pipe) -> None:
        self._plan = plan
        self._pipe = pipe
        self._tally = Tally()
        self._check = check_of(plan.route)
        self._distinct = len({request.data for request in requests})
        self._sending = _loop_of(plan, process, requests, self._tally)
        self._wanted = plan.connections_of(process)
        self._connections: set[Connection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._made = 0
        self._beats: list[float] = []
        self._is_over = False

    async def run(self) -> Share:
        """Connect, wait for the word, send, and wait for what is on its way.

        Raises ConfigError when there is nobody to connect to.
        """
        plan = self._plan
        await self._connect_all()
        self._pipe.send(None)
        start = await asyncio.get_running_loop().run_in_executor(None, self._pipe.recv)
        measured = start + plan.warm_up
        beating = asyncio.create_task(self._beat(measured))
        watching = asyncio.create_task(self._watch_timeouts())
        sending = asyncio.create_task(self._sending.run(start, measured + plan.duration))
        cpu = await _cpu_between(measured, measured + plan.duration)
        beating.cancel()
        await sending
        await self._drain()
        watching.cancel()
        self._close()
        return Share(
            self._tally.table(),
            self._tally.wrong,
            cpu,
            np.array(self._beats),
            np.array(self._sending.late, np.float64),
            self._sending.backlog,
            self._made - self._wanted,
            self._distinct,
        )

    async def _connect_all(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await asyncio.gather(*(self._connect() for _ in range(self._wanted)))
        except TimeoutError:
            raise ConfigError(f"no connection within {CONNECT_SECONDS:.0f} s") from None
        except OSError as error:
            raise ConfigError(f"cannot connect: {error}") from None

    async def _connect(self) -> None:
        target, loop = self._plan.target, asyncio.get_running_loop()
        if target.unix_path:
            await loop.create_unix_connection(self._connection, target.unix_path)
        else:
            await loop.create_connection(
                self._connection, target.host, target.port, ssl=target.tls_context()
            )
        self._made += 1

    def _connection(self) -> Connection:
        connection = Connection(self._sending.free, self._lost, self._tally, self._check)
        self._connections.add(connection)
        return connection

    def _lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._sending.lost(connection)
        if not self._is_over:
            task = asyncio.get_running_loop().create_task(self._connect_again())
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect_again(self) -> None:
        while not self._is_over:
            try:
                async with asyncio.timeout(self._plan.timeout):
                    await self._connect()
                return
            except (OSError, TimeoutError):
                self._sending.refuse()
                await asyncio.sleep(RETRY_SECONDS)

    async def _beat(self, begin: float) -> None:
        """Watch how late this event loop is."""
        await asyncio.sleep(begin - perf_counter())
        while True:
            before = perf_counter()
            await asyncio.sleep(BEAT_SECONDS)
            self._beats.append(max(0.0, perf_counter() - before - BEAT_SECONDS))

    async def _watch_timeouts(self) -> None:
        timeout = self._plan.timeout
        while True:
            await asyncio.sleep(min(0.25, timeout / 4))
            moment = perf_counter() - timeout
            for connection in list(self._connections):
                connection.give_up_if_older(moment)
            self._sending.give_up_before(moment)

    async def _drain(self) -> None:
        """Until every request has ended: with an answer, a fault or its time-out."""
        while self._sending.waits() or any(one.is_waiting for one in self._connections):
            await asyncio.sleep(0.002)

    def _close(self) -> None:
        self._is_over = True
        for task in self._connecting:
            task.cancel()
        for connection in list(self._connections):
            connection.abort()


def _loop_of(plan: Plan, process: int, requests: list[Request], tally: Tally) -> Loop:
    if plan.rate is None:
        return ClosedLoop(requests, tally)
    return OpenLoop(requests, tally, plan.rate / plan.processes, plan.seed * 1000 + process)


async def _cpu_between(begin: float, end: float) -> float:
    """Seconds of CPU a second that this process uses between two moments."""
    await asyncio.sleep(begin - perf_counter())
    used, clock = time.process_time(), perf_counter()
    await asyncio.sleep(end - clock)
    return (time.process_time() - used) / (perf_counter() - clock)
