"""From token ids to an answer: the front end's side of the channels to the engines.

Requests that are submitted in one turn of the event loop leave as one message
to an engine, and its answer to a batch comes as one message for all of them.
When an engine dies, what it had is failed at once and the connection is made
anew: it is accepted when the next engine is ready.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Sequence as PySequence
from typing import Any

from packhorse.channel import codec, listener
from packhorse.channel.channel import (
    Channel,
    ChannelClosedError,
    ChannelFullError,
    ProtocolError,
)
from packhorse.channel.codec import Kind
from packhorse.channel.vitals import Vitals
from packhorse.errors import (
    DeadlineExceededError,
    OverloadedError,
    ServedError,
    UnavailableError,
)
from packhorse.request import Completions, Sequences

logger = logging.getLogger(__name__)

RECONNECT_SECONDS = 0.05


class Block:
    """One message of answers, shared by the requests it answers.

    ``written`` holds what was made of its rows, so that it is made once for all of them.
    """

    __slots__ = ("completions", "failed", "written")

    def __init__(self, completions: Completions) -> None:
        self.completions = completions
        self.failed = bool(completions.codes.any())
        self.written: dict[bool, list[bytes]] = {}


class Pending:
    """A request that was submitted: await ``future``, then read the rest.

    parts       (block, offset in the request, first row in the block, count), as they came
    queue_wait  seconds until its first batch started
    inference   seconds of its batches, added up
    """

    __slots__ = (
        *("count", "deadline", "future", "inference", "left", "link", "parts"),
        *("queue_wait", "sequences", "ticket", "tokens"),
    )

    def __init__(
        self,
        link: EngineLink,
        ticket: int,
        sequences: Sequences,
        deadline: float,
        future: asyncio.Future[None],
    ) -> None:
        self.link = link
        self.ticket = ticket
        self.sequences: Sequences | None = sequences  # until they are sent
        self.deadline = deadline
        self.future = future
        self.count = self.left = len(sequences)
        self.tokens = sequences.num_tokens
        self.parts: list[tuple[Block, int, int, int]] = []
        self.queue_wait = 0.0
        self.inference = 0.0

    def abandon(self, error: Exception) -> None:
        """End the wait with this error; the engine drops what it has not begun."""
        if not self.future.done():
            self.link.drop(self)
            self.future.set_exception(error)


class EngineLink:
    """One engine, as seen from here."""

    def __init__(self, address: bytes, vitals: Vitals, first_position: int) -> None:
        self._address = address
        self._vitals = vitals
        self._first_position = first_position
        self._loop = asyncio.get_running_loop()
        self._channel: Channel | None = None
        self._writing = False  # whether the loop tells us of room in the socket
        self._pending: dict[int, Pending] = {}
        self._outbox: list[Pending] = []
        self._dropped: list[int] = []
        self._tickets = 0
        self._closed = False
        self.tokens = 0
        self.info: dict[str, Any] | None = None
        self.fault: str | None = "is not ready yet"

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
        """Hang up."""
        self._closed = True
        self._lost()

    def look(self, now: float) -> None:
        """Check the engine's vitals, and deadlines; called now and then."""
        connected = self.info is not None
        self.fault = self._vitals.fault(now) if connected else "is not ready yet"
        for late in [p for p in self._pending.values() if p.deadline < now]:
            late.abandon(DeadlineExceededError("the deadline passed before the answer was there"))

    def submit(self, sequences: Sequences, deadline: float = math.inf) -> Pending:
        """Send with what else is submitted in this turn of the loop.

        Raises UnavailableError or OverloadedError.
        """
        if self.fault is not None or self._channel is None:
            raise UnavailableError(f"the engine {self.fault}")
        if self._channel.full:
            raise OverloadedError("the engine does not keep up")
        self._tickets += 1
        pending = Pending(
            self, self._tickets, sequences, deadline, self._loop.create_future()
        )
        self._pending[pending.ticket] = pending
        self.tokens += pending.tokens
        if not self._outbox:
            self._loop.call_soon(self._send)
        self._outbox.append(pending)
        return pending

    def drop(self, pending: Pending) -> None:
        """Nobody waits for it any more."""
        self._forget(pending)
        if pending.sequences is None:  # it was sent
            if not self._dropped:
                self._loop.call_soon(self._send_dropped)
            self._dropped.append(pending.ticket)

    def _forget(self, pending: Pending) -> None:
        if self._pending.pop(pending.ticket, None) is not None:
            self.tokens -= pending.tokens

    def _send(self) -> None:
        leaving = [p for p in self._outbox if p.ticket in self._pending]
        self._outbox = []
        sequences = []
        for pending in leaving:
            assert pending.sequences is not None
            sequences.append(pending.sequences)
            pending.sequences = None
        if not leaving:
            return
        self._write(
            codec.encode_arrivals(
                [p.ticket for p in leaving],
                sequences,
                time.monotonic(),
                deadlines=[p.deadline for p in leaving],
                first_position=self._first_position,
            ),
            leaving,
        )

    def _send_dropped(self) -> None:
        dropped, self._dropped = self._dropped, []
        if self._channel is not None and not self._channel.full:
            self._write(codec.encode_cancel(dropped), [])

    def _write(self, message: bytes, leaving: PySequence[Pending]) -> None:
        if self._channel is None:
            return  # lost since; what was pending was failed then
        try:
            self._channel.send(message)
        except ChannelFullError:
            for pending in leaving:
                self._fail(pending, OverloadedError("the engine does not keep up"))
        except ChannelClosedError:
            self._lost()
        else:
            self._watch_for_room()

    def _watch_for_room(self) -> None:
        assert self._channel is not None
        if self._channel.wants_write != self._writing:
            self._writing = self._channel.wants_write
            if self._writing:
                self._loop.add_writer(self._channel.fileno(), self._flush)
            else:
                self._loop.remove_writer(self._channel.fileno())

    def _flush(self) -> None:
        assert self._channel is not None
        try:
            self._channel.flush()
        except ChannelClosedError:
            self._lost()
        else:
            self._watch_for_room()

    def _read(self) -> None:
        try:
            while self._channel is not None and (message := self._channel.receive()) is not None:
                kind = codec.kind_of(message)
                if kind is Kind.COMPLETIONS:
                    self._deliver(codec.decode_completions(message))
                elif kind is Kind.INFO:
                    self.info = codec.decode_info(message)
                    self.look(time.monotonic())
                else:
                    raise ProtocolError(f"{kind.name} is for engines")
        except ChannelClosedError:
            self._lost()
        except ProtocolError as error:
            logger.error("the engine is cut off: %s", error)
            self._lost()

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
                if not pending.parts:
                    pending.queue_wait = queue_wait
                pending.parts.append((block, offset, row, count))
                pending.inference += completions.inference
                pending.left -= count
                if not pending.left:
                    self._forget(pending)
                    if not pending.future.done():
                        pending.future.set_result(None)
            row += count

    def _lost(self) -> None:
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
        self.fault = "is not ready yet"
        for pending in list(self._pending.values()):
            self._fail(pending, UnavailableError("the engine ended before the answer was there"))
        self._outbox.clear()
        self._dropped.clear()
        self._loop.call_soon(self.connect)

    def _fail(self, pending: Pending, error: ServedError) -> None:
        self._forget(pending)
        if not pending.future.done():
            pending.future.set_exception(error)


class EngineClient:
    """All engines; each request goes to the one with the fewest tokens of ours."""

    def __init__(self, links: PySequence[EngineLink]) -> None:
        self.links = links

    def connect(self) -> None:
        """Connect to all."""
        for link in self.links:
            link.connect()

    def close(self) -> None:
        """Hang up everywhere; what is pending is failed."""
        for link in self.links:
            link.close()

    def look(self) -> None:
        """Check vitals and deadlines; called now and then."""
        now = time.monotonic()
        for link in self.links:
            link.look(now)

    @property
    def fault(self) -> str | None:
        """Why no engine can be used, or None."""
        faults = [link.fault for link in self.links]
        return None if None in faults else f"the engine {faults[0]}"

    @property
    def info(self) -> dict[str, Any] | None:
        """What the first engine that is ready says of itself."""
        return next((link.info for link in self.links if link.info is not None), None)

    def submit(self, sequences: Sequences, deadline: float = math.inf) -> Pending:
        """Send to an engine.

        Raises UnavailableError or OverloadedError.
        """
        if len(self.links) == 1:
            return self.links[0].submit(sequences, deadline)
        usable = [link for link in self.links if link.fault is None]
        chosen = min(usable or self.links, key=lambda link: link.tokens)
        return chosen.submit(sequences, deadline)
