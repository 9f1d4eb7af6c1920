"""What uvicorn leaves out for a connection: who hung up, who stalls, and errors as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from packhorse.errors import MalformedRequestError
from packhorse.server.body import ClientGoneError, Scope
from packhorse.server.engine_client import Pending
from packhorse.server.schemas import error_body

EXTENSION = "packhorse.connection"

STALL_SECONDS = 20.0
"""A client that sends nothing for so long in the middle of a request is cut off (at most twice
that), and so is one whose headers take longer."""


class Connection(HttpToolsProtocol):
    """One client's connection. ``pending`` is the request that it waits for, if any."""

    pending: Pending | None = None
    _bytes_seen = 0
    _bytes_before = 0
    _sweeps_in_headers = 0

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {EXTENSION: self}  # type: ignore[typeddict-unknown-key]

    def data_received(self, data: bytes) -> None:
        self._bytes_seen += len(data)
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.pending is not None:
            self.pending.abandon(ClientGoneError())

    def send_400_response(self, msg: str) -> None:
        """The request is not HTTP."""
        body = error_body(MalformedRequestError(msg))
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body)
        )
        self.transport.close()

    def stalls(self) -> bool:
        """Whether the client has kept us waiting since the last time this was asked."""
        moved = self._bytes_seen != self._bytes_before
        self._bytes_before = self._bytes_seen
        if self.cycle is None or self.cycle.response_complete:
            in_headers = self.timeout_keep_alive_task is None  # else it is idle between requests
            self._sweeps_in_headers = self._sweeps_in_headers + 1 if in_headers else 0
            return self._sweeps_in_headers > 1
        self._sweeps_in_headers = 0
        return self.cycle.more_body and not moved


def sweep(connections: Iterable[Any]) -> int:
    """Cut off the clients that stall; call it every ``STALL_SECONDS``."""
    stalling = [c for c in connections if isinstance(c, Connection) and c.stalls()]
    for connection in stalling:
        connection.transport.abort()
    return len(stalling)


def connection_of(scope: Scope) -> Connection | None:
    """The connection of a request, or None under another server."""
    extensions = scope.get("extensions")
    return extensions.get(EXTENSION) if extensions else None
