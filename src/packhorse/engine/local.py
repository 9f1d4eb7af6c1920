"""The engine inside the caller's process: a thread that runs it, and futures for the answers.

    _Mailbox      what callers and the thread share; one lock guards all of it
    _Server       the thread's loop around the engine, from load to close
    LocalEngine   what callers hold; the thread does not, so dropping it ends the thread

Nothing here is of one operating system: sockets wake the thread, not pipes.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import selectors
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.engine.engine import Engine
from packhorse.engine.wider_model import LOADING_SECONDS
from packhorse.errors import InternalError, UnavailableError
from packhorse.request import Answer, Arrivals, Completions, Part, Sequences, answer_of, parts_of

logger = logging.getLogger(__name__)

CLOSED = "this encoder is closed"


class _Pending:
    """One call whose answer arrives in parts.

    order  in which its sequences went to the engine; None: as they came
    """

    __slots__ = ("future", "left", "order", "parts")

    def __init__(
        self, num_sequences: int, future: Future[Answer], order: NDArray[np.intp] | None = None
    ) -> None:
        self.future = future
        self.order = order
        self.left = num_sequences
        self.parts: list[Part] = []

    def answer(self, answer: Answer) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(answer if self.order is None else answer.restored(self.order))

    def fail(self, error: Exception) -> None:
        # A cancelled future takes no exception, and those after it must still get theirs.
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


_Message = tuple[int, Arrivals, _Pending] | int
"""A new call, or the ticket of one that is cancelled."""


class _Mailbox:
    """What callers leave for the engine's thread, and how they wake it up."""

    def __init__(self) -> None:
        # A sleeping reader can be woken through a socket on every system, through a pipe not.
        self.reader, self._writer = socket.socketpair()
        self.reader.setblocking(False)
        self._writer.setblocking(False)
        # Reentrant: the collector may drop an encoder, which closes it, at any allocation.
        self._lock = threading.RLock()
        self._messages: list[_Message] = []
        self._refusal: str | None = None
        self._ended = False
        self._pid = os.getpid()

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the one that has the thread."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Raise UnavailableError unless calls are taken."""
        # First, and without the lock: at the fork another thread may have held it.
        if self.is_foreign:
            raise UnavailableError(
                "this encoder was made before fork; make an Encoder in each process"
            )
        with self._lock:
            if self._refusal is not None:
                raise UnavailableError(self._refusal)

    def put(self, ticket: int, arrivals: Arrivals, pending: _Pending) -> None:
        """Raises UnavailableError unless calls are taken."""
        with self._lock:
            self.check()
            self._messages.append((ticket, arrivals, pending))
            self._wake()

    def cancel(self, ticket: int) -> None:
        """Nobody waits for this call any more; of no effect once the thread has ended."""
        if self.is_foreign:
            return
        with self._lock:
            if not self._ended:
                self._messages.append(ticket)
                self._wake()

    def close(self, refusal: str) -> None:
        """Take no more calls; those that are in are served. Later ones get ``refusal``."""
        if self.is_foreign:
            return
        with self._lock:
            if self._refusal is None:
                self._refusal = refusal
                self._wake()

    def take(self) -> tuple[list[_Message], bool]:
        """What was left since the last time, and whether more may come."""
        with self._lock:
            messages, self._messages = self._messages, []
            return messages, self._refusal is None

    def end(self) -> None:
        """Nobody reads any more."""
        with self._lock:
            self._ended = True
            self.reader.close()
            self._writer.close()

    def _wake(self) -> None:
        if not self._ended:
            with contextlib.suppress(BlockingIOError):  # the thread has enough to wake up for
                self._writer.send(b"\0")


class LocalEngine:
    """Runs an ``Engine`` in a thread; safe to call from several.

    ``load`` runs in that thread too, since it sets the thread's share of cores and its device;
    what it raises, the constructor raises. When the last reference is dropped, what is queued
    is finished, the device is freed and the thread ends.

    by_length  have sequences of equal length in the same batch, which a CPU computes together
    """

    def __init__(self, load: Callable[[], Engine], width: int, *, by_length: bool = False) -> None:
        self._width = width
        self._by_length = by_length
        self._tickets = itertools.count()
        loaded: Future[tuple[_Mailbox, dict[str, Any]]] = Future()
        self._thread = threading.Thread(
            target=_run, args=(load, loaded), name="packhorse-engine", daemon=True
        )
        self._thread.start()
        try:
            self._mailbox, self.info = loaded.result()
        except BaseException:
            # Interrupted while it loads: nobody will close it.
            if not loaded.cancel() and loaded.exception() is None:
                loaded.result()[0].close(CLOSED)
            raise
        closing = weakref.finalize(self, self._mailbox.close, CLOSED)
        closing.atexit = False  # a process that ends waits for nobody's answer

    def check(self) -> None:
        """Raise UnavailableError once closed or stopped, and in a fork of this process."""
        self._mailbox.check()

    def submit(self, sequences: Sequences) -> Future[Answer]:
        """Queue sequences; the future holds their answer. Cancelling it drops what still waits.

        Raises UnavailableError as ``check`` does.
        """
        self.check()
        future: Future[Answer] = Future()
        order = np.argsort(sequences.lengths, kind="stable") if self._by_length else None
        if order is not None:
            sequences = sequences.take(order)
        pending = _Pending(len(sequences), future, order)
        if not len(sequences):
            pending.answer(Answer(np.empty((0, self._width), np.float32), np.empty(0, np.uint8)))
            return future
        ticket, mailbox = next(self._tickets), self._mailbox
        mailbox.put(ticket, _one_request(ticket, sequences), pending)
        future.add_done_callback(lambda done: mailbox.cancel(ticket) if done.cancelled() else None)
        return future

    def close(self) -> None:
        """Finish what is queued, then free the device and stop the thread."""
        self._mailbox.close(CLOSED)
        # A callback of a future may close, and runs in the thread itself.
        if not self._mailbox.is_foreign and threading.current_thread() is not self._thread:
            self._thread.join()


def _run(load: Callable[[], Engine], loaded: Future[tuple[_Mailbox, dict[str, Any]]]) -> None:
    """The engine's thread, from load to close."""
    try:
        engine = load()
    except BaseException as error:
        if loaded.set_running_or_notify_cancel():
            loaded.set_exception(error)
        return
    try:
        if loaded.set_running_or_notify_cancel():  # else nobody waits for it any more
            mailbox = _Mailbox()
            loaded.set_result((mailbox, engine.info))
            _Server(engine, mailbox).run()
    finally:
        _close(engine)


def _close(engine: Engine) -> None:
    try:
        engine.close()
    except Exception:  # of a device that is lost; its answers are told already
        logger.exception("the engine could not be closed")


class _Server:
    """The loop around an engine that callers in this process use."""

    def __init__(self, engine: Engine, mailbox: _Mailbox) -> None:
        self._engine = engine
        self._mailbox = mailbox
        self._pending: dict[int, _Pending] = {}

    def run(self) -> None:
        """Until the mailbox is closed and everything answered, or the engine fails."""
        try:
            with selectors.DefaultSelector() as selector:
                self._serve(selector)
        except BaseException as error:
            # Nobody else can tell those who wait: a lost device, or a bug.
            logger.exception("the engine stopped")
            self._fail(f"the engine stopped: {error!r}; make a new encoder")
        finally:
            self._mailbox.end()

    def _serve(self, selector: selectors.BaseSelector) -> None:
        selector.register(self._mailbox.reader.fileno(), selectors.EVENT_READ)
        if self._engine.completion_fd is not None:
            selector.register(self._engine.completion_fd, selectors.EVENT_READ)
        open_for_more = True
        while open_for_more or self._pending:
            self._wait(selector)
            open_for_more = self._take()
            for completions in self._engine.step():
                self._deliver(completions)

    def _wait(self, selector: selectors.BaseSelector) -> None:
        """Until something arrived or a batch is done."""
        timeout = LOADING_SECONDS if self._engine.is_loading else None
        if self._engine.completion_fd is None and self._engine.in_flight:
            timeout = 0
        for key, _ in selector.select(timeout):
            _drain(key.fd)

    def _take(self) -> bool:
        """Hand what was submitted to the engine; False when no more will come."""
        messages, more = self._mailbox.take()
        # All of them first: should the engine fail at one, those after it must hear of it.
        for message in messages:
            if not isinstance(message, int):
                self._pending[message[0]] = message[2]
        for message in messages:
            if isinstance(message, int):
                self._cancel(message)
            else:
                self._engine.add(message[1])
        return more

    def _cancel(self, ticket: int) -> None:
        pending = self._pending.pop(ticket, None)
        if pending is not None:  # else it was answered meanwhile
            pending.future.set_running_or_notify_cancel()
            self._engine.cancel(np.array([ticket], np.uint64))

    def _fail(self, why: str) -> None:
        """Tell everyone who waits, also those whose call the engine never saw."""
        self._mailbox.close(why)
        for message in self._mailbox.take()[0]:
            if not isinstance(message, int):
                self._pending[message[0]] = message[2]
        for pending in self._pending.values():
            pending.fail(InternalError(why))
        self._pending.clear()

    def _deliver(self, completions: Completions) -> None:
        for ticket, part in zip(completions.tickets.tolist(), parts_of(completions), strict=True):
            pending = self._pending.get(ticket)
            if pending is None:  # cancelled while this part was on the device
                continue
            pending.parts.append(part)
            pending.left -= len(part.codes)
            if not pending.left:
                del self._pending[ticket]
                pending.answer(answer_of(pending.parts))


def _drain(fd: int) -> None:
    """Empty what woke us up: a socket, or a GPU's pipe."""
    if sys.platform == "win32":  # os.read knows no sockets there
        waker = socket.socket(fileno=fd)
        try:
            waker.recv(4096)
        finally:
            waker.detach()
    else:
        os.read(fd, 4096)


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
