"""When signals come while the supervisor is busy: children are fakes that do as they are told."""

from __future__ import annotations

import errno
import io
import os
import signal
from collections.abc import Callable, Iterator

import pytest

from packhorse import child as children
from packhorse import generation, supervisor
from packhorse.checkpoint import load_checkpoint
from packhorse.child import Child, Kind
from packhorse.config import Config, ServerOptions, resolve
from packhorse.hardware import Hardware
from packhorse.launch import SETUP_FAILED
from packhorse.server.listen import bind
from packhorse.supervisor import FAILED, Supervisor


class FakeProcess:
    """It ends at the first signal."""

    def __init__(self, status_fd: int, on_signal: Callable[[int], None]) -> None:
        self.stdin = io.BytesIO()
        self.status_fd = status_fd
        self._on_signal = on_signal
        self._status: int | None = None

    def end(self, status: int) -> None:
        if self._status is None:
            self._status = status
            os.close(self.status_fd)

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

        self.child = FakeChild
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


def reports_ready(child: Child, process: FakeProcess) -> None:
    os.write(process.status_fd, b"ready\n")


def refusing(world: World, refusals: dict[int, int]) -> None:
    """The starts with these numbers find no process, so many times each."""
    start = world.child.start

    def start_or_fail(child: Child) -> None:
        number = len(world.started)
        if refusals.get(number, 0):
            refusals[number] -= 1
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        start(child)

    world.child.start = start_or_fail  # type: ignore[method-assign]


def test_a_system_without_a_process_for_a_child_is_asked_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def on_start(child: Child, process: FakeProcess) -> None:
        reports_ready(child, process)
        if len(world.started) == 5:
            process.send_signal(signal.SIGKILL)  # once it was ready, as its line comes first
        elif len(world.started) == 6:
            world.supervisor.on_signal(signal.SIGTERM)

    world.on_start = on_start
    refusing(world, {5: 1})
    assert world.supervisor.run() == 0
    assert len(world.started) == 6
    assert world.started[5] is world.started[4]
    text = f"cannot be started: {os.strerror(errno.EAGAIN)}; it is replaced"
    assert caplog.text.count(text) == 1


def test_a_server_that_cannot_start_its_first_processes_ends(world: World) -> None:
    world.on_start = reports_ready
    refusing(world, {2: 1})
    assert world.supervisor.run() == FAILED
    assert len(world.started) == 2
    assert all(child.process is None for child in world.started)


def test_without_a_process_that_stands_by_the_server_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(children, "STEADY_SECONDS", 0.0)
    asked = []

    def prepare(child: Child) -> None:
        asked.append(child)
        world.supervisor.on_signal(signal.SIGTERM)
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(world.child, "prepare", prepare)
    world.on_start = reports_ready
    assert world.supervisor.run() == 0
    assert len(asked) == 1
    assert "no process stands by for a while" in caplog.text
