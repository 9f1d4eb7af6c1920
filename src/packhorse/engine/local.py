"""The engine inside the caller's process: a thread that runs it, and futures for the answers."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import queue
import select
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from packhorse.engine.engine import Engine
from packhorse.errors import InternalError, UnavailableError
from packhorse.request import Arrivals, Completions, Float32Array, Sequences

logger = logging.getLogger(__name__)

Answer = tuple[Float32Array, NDArray[np.uint8]]
"""logits float32 (N, labels) and codes uint8 (N,) of one call."""


class _Pending:
    """One call whose answer arrives in parts."""

    __slots__ = ("codes", "future", "left", "logits")

    def __init__(self, num_sequences: int, num_labels: int, future: Future[Answer]) -> None:
        self.future = future
        self.left = num_sequences
        self.logits = np.empty((num_sequences, num_labels), np.float32)
        self.codes = np.empty(num_sequences, np.uint8)


class LocalEngine:
    """Runs an ``Engine`` in a thread; safe to call from several."""

    def __init__(self, load: Callable[[], Engine], num_labels: int) -> None:
        self._num_labels = num_labels
        self._tickets = itertools.count()
        self._arrivals: queue.SimpleQueue[tuple[Arrivals, _Pending] | None] = queue.SimpleQueue()
        self._pending: dict[int, _Pending] = {}
        self._closed = self._freed = False
        self._wake_fd, self._waker_fd = os.pipe()
        os.set_blocking(self._waker_fd, False)
        self._engine = load()
        self.info = self._engine.info
        self._thread = threading.Thread(target=self._run, name="packhorse-engine", daemon=True)
        self._thread.start()

    def submit(self, sequences: Sequences) -> Future[Answer]:
        """Queue sequences; the future holds their answer.

        Raises UnavailableError once closed.
        """
        if self._closed:
            raise UnavailableError("this encoder is closed")
        future: Future[Answer] = Future()
        pending = _Pending(len(sequences), self._num_labels, future)
        if not len(sequences):
            future.set_result((pending.logits, pending.codes))
            return future
        ticket = next(self._tickets)
        self._arrivals.put((_one_request(ticket, sequences), pending))
        self._wake()
        return future

    def close(self) -> None:
        """Finish what is queued, then stop the thread and free the device."""
        if not self._closed:
            self._closed = True
            self._arrivals.put(None)
            self._wake()
        if not self._freed:
            self._freed = True
            self._thread.join()
            self._engine.close()
            os.close(self._waker_fd)
            os.close(self._wake_fd)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the thread has enough to wake up for
            os.write(self._waker_fd, b"\0")

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            # Nobody else can tell those who wait: a lost device, or a bug.
            logger.exception("the engine stopped")
            self._closed = True
            self._take_arrivals()
            for pending in self._pending.values():
                stopped = InternalError(f"the engine stopped: {error!r}; make a new encoder")
                pending.future.set_exception(stopped)
            self._pending.clear()

    def _serve(self) -> None:
        open_for_more = True
        while open_for_more or self._pending:
            self._wait()
            open_for_more = self._take_arrivals() and open_for_more
            for completions in self._engine.step():
                self._deliver(completions)

    def _wait(self) -> None:
        """Until something arrived or a batch is done."""
        completion_fd = self._engine.completion_fd
        fds = [self._wake_fd] if completion_fd is None else [self._wake_fd, completion_fd]
        polling = completion_fd is None and self._engine.in_flight
        for fd in select.select(fds, [], [], 0 if polling else None)[0]:
            os.read(fd, 4096)

    def _take_arrivals(self) -> bool:
        """Hand what was submitted to the engine; False when closing."""
        while True:
            try:
                submitted = self._arrivals.get_nowait()
            except queue.Empty:
                return True
            if submitted is None:
                return False
            arrivals, pending = submitted
            self._pending[int(arrivals.tickets[0])] = pending
            self._engine.add(arrivals)

    def _deliver(self, completions: Completions) -> None:
        row = 0
        for ticket, offset, count in zip(
            completions.tickets.tolist(),
            completions.offsets.tolist(),
            completions.counts.tolist(),
            strict=True,
        ):
            pending = self._pending[ticket]
            pending.logits[offset : offset + count] = completions.logits[row : row + count]
            pending.codes[offset : offset + count] = completions.codes[row : row + count]
            row += count
            pending.left -= count
            if not pending.left:
                del self._pending[ticket]
                if pending.future.set_running_or_notify_cancel():
                    pending.future.set_result((pending.logits, pending.codes))


def _one_request(ticket: int, sequences: Sequences) -> Arrivals:
    return Arrivals(
        tickets=np.array([ticket], np.uint64),
        counts=np.array([len(sequences)], np.int32),
        clients=np.zeros(1, np.uint64),
        priorities=np.zeros(1, np.int8),
        deadlines=np.array([math.inf]),
        sequences=sequences,
        arrived=time.monotonic(),
    )
