"""The front end's side of the channels to the engines.

When an engine dies, what it had is failed at once and the connection is made
anew: it is accepted when the next engine is ready.
"""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections.abc import Callable
from collections.abc import Sequence as PySequence
from typing import Any

from packhorse.channel import codec, listener
from packhorse.channel.channel import (
    Bytes,
    Channel,
    ChannelClosedError,
    ChannelFullError,
    ProtocolError,
)
from packhorse.channel.codec import Kind
from packhorse.channel.vitals import Vitals
from packhorse.errors import OverloadedError, ServedError, UnavailableError
from packhorse.logs import describe
from packhorse.request import Completions, Sequences
from packhorse.server.pending import Block, Pending

logger = logging.getLogger(__name__)

RECONNECT_SECONDS = 0.05

_NOT_READY = "the engine is not ready yet"


class EngineLink:
    """One engine, as seen from here.

    stir    called when something was sent to it, and when answers came
    fault   why it cannot be used, or None
    info    what it says of itself; None when it is not there
    tokens  that it has of ours
    """

    def __init__(
        self, address: bytes, vitals: Vitals, stir: Callable[[], None] | None = None
    ) -> None:
        self._address = address
        self._vitals = vitals
        self._stir = stir
        self._loop = asyncio.get_running_loop()
        self._channel: Channel | None = None
        self._writing = False  # whether the loop tells us of room in the socket
        self._pending: dict[int, Pending] = {}
        self._abandoned: list[int] = []
        self._last_ticket = 0
        self._closed = False
        self.tokens = 0
        self.info: dict[str, Any] | None = None
        self.fault: str | None = _NOT_READY

    @property
    def in_flight(self) -> int:
        """Requests that wait for it."""
        return len(self._pending)

    def connect(self) -> None:
        """Connect, and keep trying."""
        if self._closed:
            return
        try:
            self._channel = listener.connect(self._address)
        except (OSError, listener.StrangerError) as error:
            logger.warning("no connection to the engine: %s", error)
            self._loop.call_later(RECONNECT_SECONDS, self.connect)
            return
        self._loop.add_reader(self._channel.fileno(), self._read)

    def close(self) -> None:
        """Hang up; what is pending is failed."""
        self._closed = True
        self._lose()

    def look(self, now: float) -> None:
        """Check the engine's vitals; called now and then."""
        if self.info is not None:
            fault = self._vitals.fault(now)
            self.fault = None if fault is None else f"the engine {fault}"

    def send(self, requests: PySequence[Pending], sequences: Sequences) -> None:
        """Send requests, whose inputs are ``sequences``; they are failed if it cannot be."""
        if self.fault is not None or self._channel is None:
            _fail(requests, UnavailableError(self.fault or _NOT_READY))
            return
        first = self._last_ticket + 1
        self._last_ticket += len(requests)
        for ticket, pending in enumerate(requests, first):
            pending.ticket = ticket
            pending.on_abandon = self._abandon
            self._pending[ticket] = pending
        self.tokens += sequences.num_tokens
        message = _message_of(first, requests, sequences)
        try:
            self._write(self._channel, message)
        except ChannelFullError:
            for pending in requests:
                self._forget(pending)
            _fail(requests, OverloadedError("the engine does not keep up"))
        if self._stir is not None:
            self._stir()

    def _abandon(self, pending: Pending) -> None:
        """Nobody waits for it any more: tell the engine that has it, with others of this turn."""
        if pending.ticket not in self._pending:
            return
        self._forget(pending)
        if not self._abandoned:
            self._loop.call_soon(self._send_abandoned)
        self._abandoned.append(pending.ticket)

    def _send_abandoned(self) -> None:
        tickets, self._abandoned = self._abandoned, []
        if self._channel is not None and not self._channel.full:
            self._write(self._channel, codec.encode_cancel(tickets))

    def _forget(self, pending: Pending) -> None:
        if self._pending.pop(pending.ticket, None) is not None:
            self.tokens -= pending.sent_tokens

    def _write(self, channel: Channel, message: bytes) -> None:
        """Raises ChannelFullError."""
        try:
            channel.send(message)
            self._watch_for_room(channel)
        except ChannelClosedError:
            self._lose()

    def _watch_for_room(self, channel: Channel) -> None:
        if channel.wants_write != self._writing:
            self._writing = channel.wants_write
            if self._writing:
                self._loop.add_writer(channel.fileno(), self._flush, channel)
            else:
                self._loop.remove_writer(channel.fileno())

    def _flush(self, channel: Channel) -> None:
        try:
            channel.flush()
            self._watch_for_room(channel)
        except ChannelClosedError:
            self._lose()

    def _read(self) -> None:
        try:
            while self._channel is not None and (message := self._channel.receive()) is not None:
                self._take(message)
        except ChannelClosedError:
            self._lose()
        except ProtocolError as error:
            logger.error("the engine is cut off: %s", error)
            self._lose()
        except Exception as error:  # what the message answered would wait for ever
            logger.error("the engine is cut off: %s", describe(error))
            self._lose()

    def _take(self, message: Bytes) -> None:
        kind = codec.kind_of(message)
        if kind is Kind.COMPLETIONS:
            self._deliver(codec.decode_completions(message))
        elif kind is Kind.INFO:
            self.info, number = codec.decode_info(message)
            # The count goes on: a ticket of an engine before is never one of this engine's.
            self._last_ticket &= (1 << codec.NUMBER_SHIFT) - 1
            self._last_ticket |= number << codec.NUMBER_SHIFT
            self.look(time.monotonic())
        else:
            raise ProtocolError(f"{kind.name} is for engines")

    def _deliver(self, completions: Completions) -> None:
        block = Block(completions)
        row = 0
        for ticket, offset, count, queue_wait in zip(
            completions.tickets.tolist(),
            completions.offsets.tolist(),
            completions.counts.tolist(),
            completions.queue_wait.tolist(),
            strict=True,
        ):
            pending = self._pending.get(ticket)
            if pending is not None:
                if pending.unanswered == pending.num_sent:
                    pending.queue_wait = queue_wait
                pending.unanswered -= count
                if not pending.unanswered:
                    self._forget(pending)
                pending.deliver(block, offset, row, count)
            row += count
        if self._stir is not None:
            self._stir()

    def _lose(self) -> None:
        """The engine is gone: fail what it had, connect to the next."""
        channel, self._channel = self._channel, None
        if channel is None:
            return
        self._loop.remove_reader(channel.fileno())
        if self._writing:
            self._loop.remove_writer(channel.fileno())
            self._writing = False
        channel.close()
        self.info = None
        self.fault = _NOT_READY
        lost = list(self._pending.values())
        self._pending.clear()
        self._abandoned.clear()
        self.tokens = 0
        _fail(lost, UnavailableError("the engine ended before the answer was there"))
        self._loop.call_soon(self.connect)


class EngineClient:
    """All engines.

    refusal  why nothing new is sent to any, however well they are; None while it is
    """

    def __init__(self, links: PySequence[EngineLink]) -> None:
        self.links = links
        self.refusal: str | None = None

    def connect(self) -> None:
        """Connect to all."""
        for link in self.links:
            link.connect()

    def close(self) -> None:
        """Hang up everywhere."""
        for link in self.links:
            link.close()

    def look(self) -> None:
        """Check vitals; called now and then."""
        now = time.monotonic()
        for link in self.links:
            link.look(now)

    @property
    def fault(self) -> str | None:
        """Why nothing can be sent to an engine, or None."""
        return self.refusal or self.best().fault

    @property
    def in_flight(self) -> int:
        """Requests that wait for an engine."""
        return sum([link.in_flight for link in self.links])

    @property
    def info(self) -> dict[str, Any] | None:
        """What the first engine that is there says of itself."""
        return next((link.info for link in self.links if link.info is not None), None)

    def best(self) -> EngineLink:
        """The engine to send to: one that can be used, with the fewest tokens of ours."""
        if len(self.links) == 1:
            return self.links[0]
        return min(self.links, key=lambda link: (link.fault is not None, link.tokens))


def _message_of(first: int, requests: PySequence[Pending], sequences: Sequences) -> bytes:
    """The requests, numbered from ``first`` on. Arrays of NumPy's would take twice as long."""
    return codec.encode_requests(
        tickets=array("Q", range(first, first + len(requests))),
        clients=array("Q", [pending.terms.client for pending in requests]),
        deadlines=array("d", [pending.engine_deadline for pending in requests]),
        counts=array("i", [pending.num_sent for pending in requests]),
        priorities=array("b", [pending.terms.priority for pending in requests]),
        sequences=sequences,
        arrived=time.monotonic(),
    )


def _fail(requests: PySequence[Pending], error: ServedError) -> None:
    for pending in requests:
        pending.fail(error)
