"""Two ends of a pipeline that run beside the work: read ahead of it, write behind it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")

DEPTH = 2
"""Batches that wait between two stages: enough to overlap them, little to hold in memory."""

_PATIENCE = 1.0
"""Seconds to wait for a thread that was told to stop; it may be waiting for standard input."""


class _End:
    """What comes last: the error that ended it, or None."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Prefetched(Generic[T]):
    """The elements of ``source``, made ahead by a thread.

    An error of the source is raised where its element would have come.
    ``close`` may be called while another thread waits for an element: it gets none.
    """

    def __init__(self, source: Iterable[T], depth: int = DEPTH) -> None:
        self._source = source
        self._ready: queue.Queue[T | _End] = queue.Queue(depth)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._fill, name="packhorse-read", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        while not isinstance(element := self._ready.get(), _End):
            yield element
        if element.error is not None:
            raise element.error

    def close(self) -> None:
        """Stop the thread, unless it waits for something that may never come."""
        self._stopped.set()
        step = 0.02
        for _ in range(int(_PATIENCE / step)):
            self._drain()  # the thread may wait for room
            self._thread.join(step)
            if not self._thread.is_alive():
                break
        self._drain()
        with suppress(queue.Full):
            self._ready.put_nowait(_End(None))

    def _fill(self) -> None:
        error: BaseException | None = None
        try:
            for element in self._source:
                self._ready.put(element)
                if self._stopped.is_set():
                    break
        except BaseException as raised:  # it is raised again by the thread that waits
            error = raised
        self._ready.put(_End(error))

    def _drain(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._ready.get_nowait()


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
