"""The loop of an engine's process: requests come in over channels, answers leave as they came.

    turn  read all channels, step the engine, write the answers, beat
    end   when the supervisor says so or is gone, or when the device is broken

It sees token ids, never texts.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import time
from typing import TYPE_CHECKING

import numpy as np

from packhorse.busy_polling import POLL_SECONDS
from packhorse.channel import codec, listener
from packhorse.channel.channel import (
    PENDING_LIMIT,
    Bytes,
    Channel,
    ChannelClosedError,
    ChannelFullError,
    ProtocolError,
)
from packhorse.channel.codec import Kind
from packhorse.channel.vitals import BEAT_SECONDS, Vitals
from packhorse.engine.device_gauges import DeviceGauges
from packhorse.engine.shares import shares_of
from packhorse.engine.wider_model import LOADING_SECONDS
from packhorse.errors import InternalError
from packhorse.metrics import (
    BATCH_SEQUENCES,
    BATCH_TIME,
    BATCH_TOKENS,
    FAILED_BATCHES,
    PREDICTED_RATE,
    QUEUED_SEQUENCES,
    QUEUED_TOKENS,
    WAITING_CLIENTS,
)
from packhorse.request import Completions, TicketArray

if TYPE_CHECKING:
    from packhorse.engine.engine import Engine

logger = logging.getLogger(__name__)

CANCELLED_AT_HANG_UP = 1 << 16
"""A front end that died may have had that many of its last requests still waiting."""

POLLING_BEAT_SECONDS = 0.01
"""While it polls a device that works, a turn takes microseconds and changes nothing to tell of."""

NAP_SECONDS = 50e-6
"""Between looks at a GPU that has another batch behind the one that runs. Linux makes 0.1 ms of it,
and the shortest batch takes 0.3 ms: the GPU does not notice, and a core is free for front ends."""

READ_SECONDS = 0.005
"""How long one front end is listened to before the others and the device have their turn.

Clients that ask and give up at once keep front ends sending without pause; an engine that listens
for as long as there is news would run nothing meanwhile, and be taken for dead.
"""

LEAST_PATIENCE = 4.0
"""Seconds without a finished batch that are no fault; nor are ten of the longest batch so far."""

FAILURES_BEFORE_PROBE = 3
"""Batches failing in a row after which an idle device is tried with batches known to be good."""

FAILURES_UNDER_LOAD = 30
"""After so many a device that is never idle is given nothing more until it is, and then tried."""


class DeviceBrokenError(Exception):
    """Even batches that are known to be good fail."""


class FrontEnd:
    """One that is connected."""

    __slots__ = ("channel", "last_ticket", "number", "watched")

    def __init__(self, channel: Channel, number: int) -> None:
        self.channel = channel
        self.number = number
        self.last_ticket = number << codec.NUMBER_SHIFT
        self.watched = selectors.EVENT_READ

    def check(self, tickets: TicketArray) -> None:
        """Raise ProtocolError for tickets that are not its own."""
        if len(tickets) == 1:
            is_own = int(tickets[0]) >> codec.NUMBER_SHIFT == self.number
        else:
            is_own = bool((tickets >> np.uint64(codec.NUMBER_SHIFT) == self.number).all())
        if not is_own:
            raise ProtocolError("a front end names tickets of another")


class EngineLoop:
    """The loop around an engine.

    polls_busily  look for news without pause for a moment after the last
    unread_limit  bytes of answers that a front end may leave unread before it is cut off
    """

    def __init__(
        self,
        engine: Engine,
        accepting: socket.socket,
        slot: memoryview[float],
        vitals: Vitals,
        *,
        polls_busily: bool = False,
        unread_limit: int = PENDING_LIMIT,
    ) -> None:
        self._unread_limit = unread_limit
        self._poll_seconds = POLL_SECONDS if polls_busily else 0.0
        self._last_news = 0.0
        self._engine = engine
        self._accepting = accepting
        self._slot = slot
        self._vitals = vitals
        self._front_ends: dict[int, FrontEnd] = {}
        self._connected = 0
        self._selector = selectors.DefaultSelector()
        self._waiting_since = self._beaten = 0.0
        self._longest = 0.0
        self._failures = 0
        self._device = DeviceGauges(engine, slot)
        self._looks_at_once = str(engine.info.get("device")).startswith("cuda")
        self._cancelled: list[TicketArray] = []  # in this turn
        self._ended = False
        self._beat(progress=True)

    def run(self) -> None:
        """Until ``end`` is called.

        Raises DeviceBrokenError.
        """
        self._selector.register(self._accepting, selectors.EVENT_READ, self._accept)
        if self._engine.completion_fd is not None:
            self._selector.register(
                self._engine.completion_fd, selectors.EVENT_READ, self._drain_completion_fd
            )
        while not self._ended:
            self._turn()

    def end(self) -> None:
        """Stop after this turn."""
        self._ended = True

    def end_with(self, pipe: int) -> None:
        """Stop when the other end of this pipe is closed."""
        self._selector.register(pipe, selectors.EVENT_READ, self.end)

    def _turn(self) -> None:
        timeout = self._timeout()
        news = self._selector.select(timeout)
        for key, events in news:
            if isinstance(key.data, FrontEnd):
                self._serve(key.data, events)
            else:
                key.data()
        self._cancel()
        was_in_flight = self._engine.in_flight
        finished = self._engine.step()
        launched = self._engine.take_launched()
        # First, so that who has an answer finds it counted.
        self._count(launched, finished)
        for completions in finished:
            self._answer(completions)
        if news or finished:
            self._last_news = time.monotonic()
        if news or launched or finished or (timeout and not was_in_flight):
            self._show_queue()
        self._beat(bool(finished) or not was_in_flight)
        if self._failures >= FAILURES_BEFORE_PROBE:
            self._probe()

    def _timeout(self) -> float:
        """How long to wait for news, in seconds."""
        if self._engine.in_flight and self._engine.completion_fd is None:
            # Nothing will wake us. On a GPU we look again at once, as batches take microseconds;
            # on a CPU the core that looks is one that does not compute.
            if not self._looks_at_once:
                return 0.001
            if self._engine.is_ahead:
                time.sleep(NAP_SECONDS)
            return 0.0
        if not self._engine.in_flight:
            if self._engine.queued()[0]:
                return 0.0
            if time.monotonic() - self._last_news < self._poll_seconds:
                return 0.0
        return LOADING_SECONDS if self._engine.is_loading else BEAT_SECONDS

    def _accept(self) -> None:
        channel = listener.accept(self._accepting, self._unread_limit)
        if channel is None:
            return
        front_end = FrontEnd(channel, self._free_number())
        self._front_ends[front_end.number] = front_end
        self._selector.register(channel, selectors.EVENT_READ, front_end)
        self._send(front_end, codec.encode_info(self._engine.info, front_end.number))

    def _free_number(self) -> int:
        """For a new front end: 16 bits, none that a connected one has."""
        self._connected = self._connected % 0xFFFF + 1
        while self._connected in self._front_ends:
            self._connected = self._connected % 0xFFFF + 1
        return self._connected

    def _drain_completion_fd(self) -> None:
        assert self._engine.completion_fd is not None
        with contextlib.suppress(BlockingIOError):
            os.read(self._engine.completion_fd, 4096)

    def _serve(self, front_end: FrontEnd, events: int) -> None:
        channel = front_end.channel
        try:
            if events & selectors.EVENT_WRITE:
                channel.flush()
                self._watch(front_end)
            if events & selectors.EVENT_READ:
                self._listen(front_end)
        except ChannelClosedError:
            self._hang_up(front_end)
        except ProtocolError as error:
            logger.error("front end %d is cut off: %s", front_end.number, error)
            self._hang_up(front_end)

    def _listen(self, front_end: FrontEnd) -> None:
        """Take messages, for a moment: what is left makes the selector return at once.

        An idle GPU gets what was asked first without a look for more: a batch takes it so little
        time that the rest does not wait long. On a CPU the rest would.
        """
        end = time.monotonic() + READ_SECONDS
        while not self._is_suspect and (message := front_end.channel.receive()) is not None:
            self._take(front_end, message)
            is_idle = self._looks_at_once and not self._engine.in_flight
            if (is_idle and self._engine.queued()[0]) or time.monotonic() >= end:
                return

    def _take(self, front_end: FrontEnd, message: Bytes) -> None:
        kind = codec.kind_of(message)
        if kind is Kind.ARRIVALS:
            arrivals = codec.decode_arrivals(message)
            front_end.check(arrivals.tickets)
            front_end.last_ticket = int(arrivals.tickets[-1])
            self._engine.add(arrivals)
        elif kind is Kind.CANCEL:
            tickets = codec.decode_cancel(message)
            front_end.check(tickets)
            self._cancelled.append(tickets)
        else:
            raise ProtocolError(f"{kind.name} is for front ends")

    def _cancel(self) -> None:
        """Once a turn: looking through what waits takes longer than reading a message."""
        if self._cancelled:
            self._engine.cancel(np.concatenate(self._cancelled))
            self._cancelled.clear()

    def _hang_up(self, front_end: FrontEnd) -> None:
        """Forget a front end that is gone, and what it still wanted."""
        del self._front_ends[front_end.number]
        self._selector.unregister(front_end.channel)
        front_end.channel.close()
        last = front_end.last_ticket
        first = max(front_end.number << codec.NUMBER_SHIFT, last - CANCELLED_AT_HANG_UP)
        self._engine.cancel(np.arange(first, last + 1, dtype=np.uint64))

    def _answer(self, completions: Completions) -> None:
        """Send each front end its parts."""
        for number, parts in shares_of(completions):
            front_end = self._front_ends.get(number)
            if front_end is not None:  # else it hung up
                self._send(front_end, codec.encode_completions(parts))

    def _send(self, front_end: FrontEnd, message: bytes) -> None:
        try:
            front_end.channel.send(message)
        except ChannelClosedError:
            self._hang_up(front_end)
        except ChannelFullError:
            logger.error("front end %d is cut off: it does not read", front_end.number)
            self._hang_up(front_end)
        else:
            self._watch(front_end)

    def _watch(self, front_end: FrontEnd) -> None:
        """Hear of room in the socket as long as something is buffered."""
        events = selectors.EVENT_READ
        if front_end.channel.wants_write:
            events |= selectors.EVENT_WRITE
        if events != front_end.watched:
            front_end.watched = events
            self._selector.modify(front_end.channel, events, front_end)

    def _show_queue(self) -> None:
        """The gauges, which may be a moment late."""
        slot = self._slot
        sequences, tokens = self._engine.queued()
        slot[QUEUED_SEQUENCES.first] = sequences
        slot[QUEUED_TOKENS.first] = tokens
        clients, rate = self._engine.outlook()
        slot[WAITING_CLIENTS.first] = clients
        slot[PREDICTED_RATE.first] = rate

    def _count(self, launched: list[tuple[int, int]], finished: list[Completions]) -> None:
        slot = self._slot
        for batch_sequences, batch_tokens in launched:
            BATCH_SEQUENCES.observe(slot, batch_sequences)
            BATCH_TOKENS.observe(slot, batch_tokens)
        for completions in finished:
            BATCH_TIME.observe(slot, completions.inference)
            self._longest = max(self._longest, completions.inference)
            codes = completions.codes
            if codes[0] == InternalError.code and (codes == InternalError.code).all():
                slot[FAILED_BATCHES.first] += 1.0
                self._failures += 1
            else:
                self._failures = 0

    def _beat(self, progress: bool) -> None:
        now = time.monotonic()
        self._device.observe(now)
        if not self._engine.in_flight:
            self._waiting_since = 0.0
        elif progress:
            self._waiting_since = now
        elif now - self._beaten < POLLING_BEAT_SECONDS:
            return
        self._beaten = now
        self._vitals.beat(now, self._waiting_since, max(LEAST_PATIENCE, 10 * self._longest))

    @property
    def _is_suspect(self) -> bool:
        """Whether so much failed that nothing more is taken until the device is tried.

        What waits is worked off meanwhile, so a time comes when it is idle.
        """
        return self._failures >= FAILURES_UNDER_LOAD

    def _probe(self) -> None:
        """Find out whether the requests are at fault or the device.

        Only when nothing is on the device: trying it needs the room of a batch.

        Raises DeviceBrokenError.
        """
        if self._engine.in_flight:
            return
        try:
            self._engine.warm_up()
        except Exception as error:
            raise DeviceBrokenError("the device fails batches that are known good") from error
        self._failures = 0
