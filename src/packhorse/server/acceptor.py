"""Taking connections from the socket that all front ends share, each its fair part.

All front ends wake up for a new connection, and whichever is quickest takes
it: left to that, one of four was seen to hold 70 of 128 connections that
stayed. So a front end that already holds more than another looks away for a
moment. One that cannot answer just then does not keep connections waiting:
after the moment anybody takes them, and more at once each time that somebody
still waits, or clients that come and go would be served one a moment: a
thousand that had hung up took 8 s of a busy machine. (A socket for each front end, by
SO_REUSEPORT, spreads by a hash: more evenly than the race, less than this;
and what waits in the socket of a dead front end is taken by nobody.)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Sized

from packhorse.channel.board import Board
from packhorse.metrics import ACCEPTING, CONNECTIONS, REFUSALS
from packhorse.server.connection import Connection
from packhorse.server.tls import HANDSHAKE_SECONDS

logger = logging.getLogger(__name__)

LOOK_AWAY_SECONDS = 0.005
EXHAUSTED_SECONDS = 0.5

MOST_AT_ONCE = 16
"""Connections that a front end takes after a moment, though it holds more than another: also about
how uneven the parts can become when many come at once."""

REFUSED_AT_ONCE = 64
"""So many connections over the limit are told so, with 503; those beyond are closed unheard."""

_HELD, _ACCEPTING = CONNECTIONS.first, ACCEPTING.first
_REFUSED = REFUSALS.word("connections")


class Acceptor:
    """Makes a protocol for each connection that it takes; has what uvicorn asks of a server."""

    def __init__(
        self,
        listening: socket.socket,
        protocol: Callable[[], Connection],
        connections: Sized,
        board: Board,
        slot: int,
        limit: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        listening.setblocking(False)
        self._listening = listening
        self._protocol = protocol
        self._limit = limit
        self._tls = tls
        self._handshake = None if tls is None else HANDSHAKE_SECONDS
        self._connections = connections
        self._all = board.slots
        self._own = board.slots[slot]
        self._loop = asyncio.get_running_loop()
        self._at_once = 1
        self._arriving: set[asyncio.Task[None]] = set()
        self._closed = False
        self._look()

    def close(self) -> None:
        """Take no more."""
        self._closed = True
        self._own[_ACCEPTING] = 0.0
        self._loop.remove_reader(self._listening.fileno())

    async def wait_closed(self) -> None:
        """Closing takes no time."""

    def count(self) -> None:
        """Show the others how many connections are held here."""
        self._own[_HELD] = float(len(self._connections) + len(self._arriving))

    def _look(self) -> None:
        if not self._closed:
            self._own[_ACCEPTING] = 1.0
            self._loop.add_reader(self._listening.fileno(), self._take)

    def _look_away(self, seconds: float) -> None:
        self._loop.remove_reader(self._listening.fileno())
        self._loop.call_later(seconds, self._look_again)

    def _look_again(self) -> None:
        """After a moment: those who still wait were taken by nobody else."""
        if self._closed:
            return
        self.count()
        self._look()
        for _ in range(self._at_once):
            if not self._take_one():
                self._at_once = 1
                return
        self._at_once = min(2 * self._at_once, MOST_AT_ONCE)

    def _take(self) -> None:
        """One connection, so that others get the next."""
        self.count()
        if self._own[_HELD] > min(self._held()):
            self._look_away(LOOK_AWAY_SECONDS)
        else:
            self._take_one()

    def _take_one(self) -> bool:
        """Whether there was one."""
        try:
            sock, _ = self._listening.accept()
        except (BlockingIOError, ConnectionAbortedError, InterruptedError):
            return False  # another front end was quicker, or the client is gone
        except OSError as error:
            logger.error("cannot take a connection: %s", error)
            self._look_away(EXHAUSTED_SECONDS)
            return False
        total = sum(self._held())
        if total >= self._limit + REFUSED_AT_ONCE:
            sock.close()
            self._own[_REFUSED] += 1.0
            return True
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        arriving = self._loop.create_task(self._connect(sock, total >= self._limit))
        self._arriving.add(arriving)
        arriving.add_done_callback(self._arriving.discard)
        self.count()
        return True

    def _held(self) -> list[float]:
        """Connections of each front end that takes any."""
        return [slot[_HELD] for slot in self._all if slot[_ACCEPTING]]

    async def _connect(self, sock: socket.socket, is_one_too_many: bool) -> None:
        connection = self._protocol()
        connection.is_one_too_many = is_one_too_many
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, sock, ssl=self._tls, ssl_handshake_timeout=self._handshake
            )
        except OSError:  # gone already
            sock.close()
