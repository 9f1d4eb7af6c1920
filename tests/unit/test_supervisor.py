"""When signals come while the supervisor is busy: children are fakes that do as they are told."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable, Iterator

import pytest

from packhorse import generation, supervisor
from packhorse.checkpoint import load_checkpoint
from packhorse.child import Child, Kind
from packhorse.config import Config, ServerOptions, resolve
from packhorse.hardware import Hardware
from packhorse.launch import SETUP_FAILED
from packhorse.server.listen import bind
from packhorse.supervisor import Supervisor


class FakeProcess:
    """It ends at the first signal."""

    def __init__(self, status_fd: int, on_signal: Callable[[int], None]) -> None:
        self.stdin = io.BytesIO()
        self._status_fd = status_fd
        self._on_signal = on_signal
        self._status: int | None = None

    def end(self, status: int) -> None:
        if self._status is None:
            self._status = status
            os.close(self._status_fd)

    def send_signal(self, number: int) -> None:
        self.end(0 if number == signal.SIGTERM else -number)
        self._on_signal(number)

    def wait(self) -> int:
        assert self._status is not None
        return self._status


class World:
    """A supervisor of one engine and four front ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        world = self

        class FakeChild(Child):
            def start(self) -> None:
                world.started.append(self)
                self._status_fd, lent = os.pipe()
                os.set_blocking(self._status_fd, False)
                process = FakeProcess(lent, lambda number: world.on_signal(self, number))
                self.process = process  # type: ignore[assignment]
                world.on_start(self, process)

        monkeypatch.setattr(generation, "Child", FakeChild)
        monkeypatch.setattr(supervisor, "name_process", lambda title: None)
        monkeypatch.setattr(supervisor, "DRAIN_SECONDS", 1.0)
        self.started: list[Child] = []
        self.on_start: Callable[[Child, FakeProcess], None] = lambda child, process: None
        self.on_signal: Callable[[Child, int], None] = lambda child, number: None
        self.http = bind("127.0.0.1", 0)
        config = resolve(Config(server=ServerOptions(front_ends=4)), Hardware(2, frozenset()))
        self.supervisor = Supervisor(config, load_checkpoint(), self.http)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(monkeypatch)
    yield made
    made.http.close()


def test_after_a_signal_no_child_is_started(world: World) -> None:
    world.on_start = lambda child, process: world.supervisor.on_signal(signal.SIGTERM)
    assert world.supervisor.run() == 0
    assert len(world.started) == 1


def test_a_signal_at_the_restart_of_a_child_starts_no_other(world: World) -> None:
    def on_start(child: Child, process: FakeProcess) -> None:
        if len(world.started) == 5:
            for one in world.started[1:3]:
                one.was_ever_ready = True
                one.process.end(-9)  # type: ignore[union-attr]
        elif len(world.started) == 6:
            assert world.http.fileno() == child.launch.listener_fd
            world.supervisor.on_signal(signal.SIGTERM)
            assert world.http.fileno() == child.launch.listener_fd

    world.on_start = on_start
    assert world.supervisor.run() == 0
    assert len(world.started) == 6


def failing_engine(child: Child, process: FakeProcess) -> None:
    if child.kind is Kind.ENGINE:
        process.end(SETUP_FAILED)


@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_after_a_failure_does_not_hide_it(world: World, signals: int) -> None:
    killed = []

    def on_signal(child: Child, number: int) -> None:
        if number == signal.SIGKILL:
            killed.append(child)
        elif child is world.started[1]:
            for _ in range(signals):
                world.supervisor.on_signal(signal.SIGTERM)

    world.on_start = failing_engine
    world.on_signal = on_signal
    assert world.supervisor.run() == SETUP_FAILED
    assert bool(killed) == (signals == 2)
