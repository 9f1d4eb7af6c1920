"""Connections from one socket to several front ends: fair parts, and nobody waits for nothing."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from packhorse.channel.board import Board
from packhorse.launch import SLOT_WORDS
from packhorse.metrics import ACCEPTING
from packhorse.server import acceptor
from packhorse.server.acceptor import MOST_AT_ONCE, Acceptor


class Held(asyncio.Protocol):
    """A connection, among those of its front end until it is lost."""

    is_one_too_many = False

    def __init__(self, among: set[Held]) -> None:
        self._among = among

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._among.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._among.discard(self)


class FrontEnds:
    """Acceptors on one loop, by slot of the board, for clients of this process."""

    def __init__(self) -> None:
        self.board = Board.create(3, SLOT_WORDS)
        self.listening = socket.socket()
        self.listening.bind(("127.0.0.1", 0))
        self.listening.listen(512)
        self.held: dict[int, set[Held]] = {}
        self.taken: dict[int, int] = {}
        self._acceptors: list[Acceptor] = []
        self._lent: list[socket.socket] = []

    def start(self, slot: int) -> None:
        held = self.held.setdefault(slot, set())
        self.taken[slot] = 0

        def protocol() -> Held:
            self.taken[slot] += 1
            return Held(held)

        lent = self.listening.dup()
        self._lent.append(lent)
        self._acceptors.append(
            Acceptor(lent, protocol, held, self.board, slot, 1000)  # type: ignore[arg-type]
        )

    def connect(self, count: int) -> list[socket.socket]:
        return [socket.create_connection(self.listening.getsockname()) for _ in range(count)]

    async def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < end, "waited in vain"
            await asyncio.sleep(0.001)

    def close(self) -> None:
        for one in self._acceptors:
            one.close()
        for listening in (self.listening, *self._lent):
            listening.close()


def running(scenario: Callable[[FrontEnds], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        ends = FrontEnds()
        try:
            await scenario(ends)
            await ends.until(lambda: not any(ends.held.values()))  # all clients are gone by then
        finally:
            ends.close()

    asyncio.run(main())


def test_connections_that_stay_are_spread_evenly() -> None:
    async def scenario(ends: FrontEnds) -> None:
        ends.start(1)
        ends.start(2)
        clients = ends.connect(128)
        await ends.until(lambda: sum(ends.taken.values()) == 128)
        assert abs(ends.taken[1] - ends.taken[2]) <= MOST_AT_ONCE
        for client in clients:
            client.close()

    running(scenario)


def test_one_connection_after_the_other_goes_to_who_holds_fewer() -> None:
    async def scenario(ends: FrontEnds) -> None:
        ends.start(1)
        ends.start(2)
        clients = []
        for count in range(1, 9):
            clients += ends.connect(1)
            await ends.until(lambda count=count: sum(ends.taken.values()) == count)  # type: ignore[misc]
            assert abs(ends.taken[1] - ends.taken[2]) <= 1
            await asyncio.sleep(4 * acceptor.LOOK_AWAY_SECONDS)  # both listen again
        for client in clients:
            client.close()

    running(scenario)


def test_those_who_wait_for_a_front_end_that_does_not_take_them_wait_a_few_moments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(ends: FrontEnds) -> None:
        ends.board.slots[2][ACCEPTING.first] = 1.0  # it holds none, and is busy or has no core
        ends.start(1)
        looks: list[float] = []
        loop = asyncio.get_running_loop()
        call_later = loop.call_later

        def noted(delay: float, callback: Any, *arguments: Any) -> Any:
            if delay == acceptor.LOOK_AWAY_SECONDS:
                looks.append(delay)
            return call_later(delay, callback, *arguments)

        monkeypatch.setattr(loop, "call_later", noted)
        clients = ends.connect(200)
        await ends.until(lambda: ends.taken[1] == 200)
        assert 1 <= len(looks) <= 200 / MOST_AT_ONCE + 6
        for client in clients:
            client.close()

    running(scenario)


def test_without_room_for_a_connection_it_looks_again_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Exhausted:
        def __init__(self, real: socket.socket) -> None:
            self._real, self.times = real, 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

        def accept(self) -> Any:
            self.times += 1
            if self.times <= 2:
                raise OSError(24, "Too many open files")
            return self._real.accept()

    async def scenario(ends: FrontEnds) -> None:
        monkeypatch.setattr(acceptor, "EXHAUSTED_SECONDS", 0.05)
        ends.start(1)
        only = ends._acceptors[0]
        exhausted = Exhausted(only._listening)
        only._listening = exhausted  # type: ignore[assignment]
        (client,) = ends.connect(1)
        await ends.until(lambda: ends.taken[1] == 1)
        assert exhausted.times == 3
        client.close()

    running(scenario)
    assert caplog.text.count("cannot take a connection") == 2
