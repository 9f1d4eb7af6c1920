"""Two ends of a pipeline that run beside the work: read ahead of it, write behind it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")

DEPTH = 2
"""Batches that wait between two stages: enough to overlap them, little to hold in memory."""

_PATIENCE = 5.0
"""Seconds to wait for a thread that was told to stop; it may be waiting for standard input."""


class _End:
    """What the thread puts last: the error that ended it, or None."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def prefetched(source: Iterator[T], depth: int = DEPTH) -> Generator[T, None, None]:
    """The same elements, made ahead by a thread. Closing it stops the thread.

    An error of the source is raised where its element would have come.
    """
    ready: queue.Queue[T | _End] = queue.Queue(depth)
    stopped = threading.Event()

    def fill() -> None:
        error: BaseException | None = None
        try:
            for element in source:
                ready.put(element)
                if stopped.is_set():
                    break
        except BaseException as raised:  # it is raised again by the thread that waits
            error = raised
        finally:
            if isinstance(source, Generator):
                source.close()
            ready.put(_End(error))

    thread = threading.Thread(target=fill, name="packhorse-read", daemon=True)
    thread.start()
    try:
        while not isinstance(element := ready.get(), _End):
            yield element
        if element.error is not None:
            raise element.error
    finally:
        stopped.set()
        _drain_until_ended(ready, thread)


def _drain_until_ended(ready: queue.Queue[T | _End], thread: threading.Thread) -> None:
    """Empty the queue, in case the thread waits for room in it, until the thread has ended."""
    step = 0.02
    for _ in range(int(_PATIENCE / step)):
        with suppress(queue.Empty):
            while True:
                ready.get_nowait()
        thread.join(step)
        if not thread.is_alive():
            return


class Behind(Generic[T]):
    """Runs ``consume(element, more_waiting)`` for each element in a thread, in order.

    Leaving the block waits until all is consumed, whatever ended the block.
    An error of ``consume`` is raised by the next ``put`` or when leaving.
    """

    def __init__(self, consume: Callable[[T, bool], None], depth: int = DEPTH) -> None:
        self._consume = consume
        self._waiting: queue.Queue[T | _End] = queue.Queue(depth)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="packhorse-write", daemon=True)

    def put(self, element: T) -> None:
        """Hand over one element; waits while ``depth`` of them wait."""
        if self._error is not None:
            raise self._error
        self._waiting.put(element)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._waiting.put(_End(None))
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _run(self) -> None:
        while not isinstance(element := self._waiting.get(), _End):
            if self._error is not None:
                continue  # keep the queue moving, so that ``put`` never hangs
            try:
                self._consume(element, not self._waiting.empty())
            except BaseException as raised:  # it is raised again by the thread that puts
                self._error = raised
