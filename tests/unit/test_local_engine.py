"""packhorse.engine.local: the thread, its callers, and how each may leave before the other."""

from __future__ import annotations

import gc
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pytest

from packhorse.engine.engine import Engine
from packhorse.engine.local import LocalEngine
from packhorse.errors import InternalError, UnavailableError
from packhorse.request import Answer, Arrivals, Completions, Sequences

SOON = 20.0
"""Seconds after which something that should happen at once will not."""


class FakeEngine:
    """Answers whatever was added at the next step."""

    completion_fd: int | None = None
    is_loading = False

    def __init__(self) -> None:
        self.info = {"device": "none"}
        self.in_flight = False
        self.added: list[int] = []
        self.cancelled: list[int] = []
        self.closed = 0
        self.thread = threading.current_thread()
        self.before_add: Callable[[], object] = lambda: None
        self.before_close: Callable[[], object] = lambda: None
        self._waiting: list[Arrivals] = []

    def add(self, arrivals: Arrivals) -> None:
        self.added.append(int(arrivals.tickets[0]))
        self.before_add()
        self._waiting.append(arrivals)

    def cancel(self, tickets: np.ndarray) -> None:
        self.cancelled += tickets.tolist()
        self._waiting = [w for w in self._waiting if int(w.tickets[0]) not in self.cancelled]

    def step(self) -> list[Completions]:
        waiting, self._waiting = self._waiting, []
        return [
            Completions(
                tickets=arrivals.tickets,
                offsets=np.zeros(1, np.int32),
                counts=arrivals.counts,
                codes=np.zeros(len(arrivals.sequences), np.uint8),
                values=np.zeros((len(arrivals.sequences), 2), np.float32),
                queue_wait=np.zeros(1, np.float32),
                inference=0.0,
            )
            for arrivals in waiting
        ]

    def close(self) -> None:
        self.before_close()
        self.closed += 1


def local(engine: FakeEngine) -> LocalEngine:
    return LocalEngine(lambda: cast(Engine, engine), 2)


def sequences(count: int = 1) -> Sequences:
    return Sequences(
        input_ids=np.zeros(count, np.int32),
        cu_seqlens=np.arange(count + 1, dtype=np.int32),
        truncated=np.zeros(count, np.bool_),
    )


def answered(future: Future[Answer]) -> bool:
    return future.result(SOON).values.shape == (1, 2)


def eventually(holds: Callable[[], bool], seconds: float = SOON) -> bool:
    """Whether it holds soon."""
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds()


@contextmanager
def many_files_open() -> Iterator[None]:
    """Every file descriptor below 1100 taken."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip("this machine allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    taken: list[int] = []
    try:
        while not taken or taken[-1] < 1100:
            taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_may_have_more_than_a_thousand_files_open() -> None:
    with many_files_open():
        engine = local(FakeEngine())
        assert answered(engine.submit(sequences()))
        engine.close()


def test_neither_a_pipe_nor_set_blocking_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "set_blocking")
    monkeypatch.delattr(os, "pipe")
    engine = local(FakeEngine())
    assert answered(engine.submit(sequences()))
    engine.close()


def test_a_stop_is_told_to_all_though_one_has_cancelled() -> None:
    go, fake = threading.Event(), FakeEngine()

    def broken() -> None:
        go.wait(SOON)
        raise RuntimeError("planted")

    fake.before_add = broken
    engine = local(fake)
    first = engine.submit(sequences())
    assert eventually(lambda: fake.added == [0])
    cancelled, last = engine.submit(sequences()), engine.submit(sequences())
    assert cancelled.cancel()
    go.set()
    for future in (first, last):
        with pytest.raises(InternalError, match="planted"):
            future.result(SOON)
    with pytest.raises(CancelledError):
        cancelled.result(SOON)
    with pytest.raises(UnavailableError, match="planted"):
        engine.submit(sequences())
    assert fake.added == [0]  # a broken engine gets no more
    engine.close()
    assert fake.closed == 1


def test_a_cancelled_call_is_taken_from_the_engine() -> None:
    go, fake = threading.Event(), FakeEngine()
    fake.before_add = lambda: go.wait(SOON)
    engine = local(fake)
    first = engine.submit(sequences())
    assert eventually(lambda: fake.added == [0])
    second, third = engine.submit(sequences()), engine.submit(sequences())
    assert second.cancel()
    go.set()
    assert answered(first)
    assert answered(third)
    assert fake.cancelled == [1]
    assert not third.cancel()  # too late, and of no effect
    engine.close()
    assert fake.cancelled == [1]


def test_each_of_two_closes_returns_when_all_is_done() -> None:
    go, fake = threading.Event(), FakeEngine()
    fake.before_close = lambda: go.wait(SOON)
    engine = local(fake)
    closers = [threading.Thread(target=engine.close) for _ in range(2)]
    for closer in closers:
        closer.start()
    time.sleep(0.1)
    assert all(closer.is_alive() for closer in closers)
    go.set()
    for closer in closers:
        closer.join(SOON)
    assert fake.closed == 1


def test_a_callback_may_close() -> None:
    engine = local(FakeEngine())
    future = engine.submit(sequences())
    future.add_done_callback(lambda _: engine.close())
    engine.close()
    assert future.done()


def test_no_call_is_lost_while_another_thread_closes() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(100):
            _submit_while_closing()
    finally:
        sys.setswitchinterval(interval)


def _submit_while_closing() -> None:
    engine = local(FakeEngine())
    futures: list[Future[Answer]] = []

    def ask() -> None:
        try:
            while True:
                futures.append(engine.submit(sequences()))
        except UnavailableError:
            pass

    threads = [threading.Thread(target=ask) for _ in range(2)]
    threads += [threading.Thread(target=engine.close) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert all(answered(future) for future in futures)


def test_what_is_queued_at_a_close_is_answered() -> None:
    go, fake = threading.Event(), FakeEngine()
    fake.before_add = lambda: go.wait(SOON)
    engine = local(fake)
    futures = [engine.submit(sequences()) for _ in range(3)]
    closer = threading.Thread(target=engine.close)
    closer.start()
    assert eventually(lambda: _is_refused(engine))
    go.set()
    assert all(answered(future) for future in futures)
    closer.join(SOON)


def _is_refused(engine: LocalEngine) -> bool:
    try:
        engine.submit(sequences(0))
    except UnavailableError:
        return True
    return False


def test_one_that_is_dropped_finishes_and_closes() -> None:
    go, fake = threading.Event(), FakeEngine()
    fake.before_add = lambda: go.wait(SOON)
    engine = local(fake)
    future = engine.submit(sequences())
    del engine
    gc.collect()
    go.set()
    assert answered(future)
    assert eventually(lambda: fake.closed == 1)


def test_loading_and_closing_are_the_threads_business() -> None:
    threads: list[threading.Thread] = []

    def load() -> Engine:
        fake = FakeEngine()
        fake.before_close = lambda: threads.append(threading.current_thread())
        threads.append(fake.thread)
        return cast(Engine, fake)

    LocalEngine(load, 2).close()
    assert len({*threads}) == 1
    assert threading.current_thread() not in threads


def test_a_load_that_fails_raises_here_and_leaves_nothing() -> None:
    def load() -> Engine:
        raise MemoryError("planted")

    before: Any = set(os.listdir("/proc/self/fd")) if sys.platform == "linux" else None
    for _ in range(5):
        with pytest.raises(MemoryError, match="planted"):
            LocalEngine(load, 2)
    if before is not None:
        assert set(os.listdir("/proc/self/fd")) == before


def test_a_model_that_is_loaded_meanwhile_needs_no_other_call_to_be_noticed() -> None:
    loaded = threading.Event()

    class Loading(FakeEngine):
        @property
        def is_loading(self) -> bool:  # type: ignore[override]
            return bool(self._waiting) and not loaded.is_set()

        def step(self) -> list[Completions]:
            return [] if self.is_loading else super().step()

    engine = local(Loading())
    future = engine.submit(sequences())
    assert not eventually(future.done, 0.3)
    loaded.set()
    assert answered(future)
    engine.close()
