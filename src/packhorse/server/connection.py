"""What uvicorn leaves out for a connection: who hung up, who stalls, and quick answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from packhorse.errors import MalformedRequestError
from packhorse.server.body import ClientGoneError, Scope
from packhorse.server.compression import GZIP_BYTES, compressed
from packhorse.server.pending import Pending
from packhorse.server.request_ids import RequestIds
from packhorse.server.schemas import error_body, error_text

EXTENSION = "packhorse.exchange"

CLOSE = (b"connection", b"close")
"""Among the default headers once every answer is the last of its connection."""

STALL_SECONDS = 20.0
"""A client that sends nothing for so long in the middle of a request is cut off (at most twice
that), and so is one whose headers take longer."""


HEADER_LIMIT = 65_536
"""Most bytes of a request before its body: its path and its headers."""

_TOO_LARGE = error_text(f"the request's headers have more than {HEADER_LIMIT} bytes", "Validation")


_ids = RequestIds()
"""For requests that cannot be read, so that nobody knows theirs."""

_GZIPPED = b"content-encoding: gzip\r\nvary: accept-encoding\r\n"


class Connection(HttpToolsProtocol):
    """One client's connection.

    pending  the request that it waits for, if any
    asking   the cycle of that request; ``cycle`` is that of the last one, where they are pipelined
    """

    pending: Pending | None = None
    asking: RequestResponseCycle | None = None
    is_one_too_many = False  # set by the acceptor: every request is refused
    _in_headers = False
    _header_bytes = 0
    _header_chunks = 0
    _begun = 0
    _unread_before = 0
    _has_drained = False
    _bytes_seen = 0
    _bytes_before = 0
    _sweeps_in_headers = 0
    _is_upgrade = False

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True
        self._begun += 1
        self._header_bytes = self._header_chunks = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """As uvicorn's, whose few lines are here as they run for every header."""
        self._count_header(len(name) + len(value) + 4)  # colon, space and line end
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._is_upgrade = self.parser.should_upgrade() and self._names_a_protocol()
        if self._is_upgrade:
            return  # it is read once more, see ``_feed``
        super().on_headers_complete()
        if CLOSE in self.server_state.default_headers:
            self.cycle.keep_alive = False
        self.scope["extensions"] = {EXTENSION: Exchange(self, self.cycle)}  # type: ignore[dict-item]

    def on_message_complete(self) -> None:
        if not self._is_upgrade:
            super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        self._bytes_seen += len(data)
        is_only_headers = self._in_headers or self.cycle is None or not self.cycle.more_body
        begun = self._begun + (not self._in_headers)
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("Invalid HTTP request received.")
            return
        # The parser keeps a header to itself until it is whole: count what came as well, except
        # where other requests came with it.
        if self._in_headers and is_only_headers and self._begun == begun:
            self._header_chunks += len(data)
            if self._header_chunks > HEADER_LIMIT and not self.transport.is_closing():
                self._refuse(431, _TOO_LARGE)

    def _feed(self, data: bytes) -> None:
        """What came, to the parser, which stops where a client offers to change the protocol.

        Java's HTTP client offers HTTP/2 with every request. A server may go on as if it did not
        (RFC 9110, section 7.8), and then what follows is the request's body: another parser
        reads all of it without the offer. Raises httptools' errors.
        """
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as stopped:
                if not self._is_upgrade:  # CONNECT: what follows is not for us
                    raise
                data = self._head_without_upgrade() + data[stopped.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _names_a_protocol(self) -> bool:
        return any(name == b"upgrade" for name, _ in self.headers)

    def _head_without_upgrade(self) -> bytes:
        lines = [
            b"%b %b HTTP/%b"
            % (self.parser.get_method(), self.url, self.parser.get_http_version().encode()),
            *(b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"),
        ]
        return b"\r\n".join([*lines, b"", b""])

    def eof_received(self) -> None:
        """The client hung up; ``connection_lost`` follows, a turn of the loop later.

        What was asked in the same breath is tokenised in between, so it is abandoned now.
        """
        self._abandon()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._abandon()

    def _abandon(self) -> None:
        if self.pending is not None and self.asking is not None:
            self.asking.disconnected = True
            self.pending.abandon(ClientGoneError())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._has_drained = True

    def send_400_response(self, msg: str) -> None:
        """The request is not HTTP, or its headers are too large."""
        if self._header_bytes > HEADER_LIMIT:
            self._refuse(431, _TOO_LARGE)
        else:
            self._refuse(400, error_body(MalformedRequestError(msg)))

    def _count_header(self, size: int) -> None:
        """Raises ValueError above the limit: the parser stops, and calls the request bad."""
        self._header_bytes += size
        if self._header_bytes > HEADER_LIMIT:
            raise ValueError("the request's headers are too large")

    def _refuse(self, status: int, body: bytes) -> None:
        """Answer without an application, and close."""
        self.transport.write(
            b"%bcontent-type: application/json\r\nx-request-id: %b\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%b"
            % (STATUS_LINE[status], _ids.new(), len(body), body)
        )
        self.transport.close()

    def close_after_answer(self) -> None:
        """The answer that is in work is the last; see also ``on_headers_complete``."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
            self.cycle.default_headers = self.server_state.default_headers

    def stalls(self) -> bool:
        """Whether the client has kept us waiting since the last time this was asked."""
        return self._does_not_read() or self._does_not_send()

    def _does_not_read(self) -> bool:
        """Whether it took nothing of what is written for it, be the request over or not."""
        unread, before = self.transport.get_write_buffer_size(), self._unread_before
        has_drained, self._has_drained = self._has_drained, False
        self._unread_before = unread
        return 0 < before <= unread and not has_drained

    def _does_not_send(self) -> bool:
        moved = self._bytes_seen != self._bytes_before
        self._bytes_before = self._bytes_seen
        if self.cycle is None or self.cycle.response_complete:
            in_headers = self.timeout_keep_alive_task is None  # else it is idle between requests
            self._sweeps_in_headers = self._sweeps_in_headers + 1 if in_headers else 0
            return self._sweeps_in_headers > 1
        self._sweeps_in_headers = 0
        return self.cycle.more_body and not moved


class Exchange:
    """A request and its answer on a connection: ASGI's ``send`` for those who are in a hurry.

    ``send`` looks at every header with two regular expressions and writes head
    and body one after the other; on the hot route that was a third of the
    time. Here the head is bytes that are known to be right, in one write.
    """

    __slots__ = ("_connection", "_cycle", "_lines", "compresses", "note", "pending", "status")

    def __init__(self, connection: Connection, cycle: RequestResponseCycle) -> None:
        self._connection = connection
        self._cycle = cycle
        self._lines = b""
        self.compresses = False
        self.note: Callable[[int], None] | None = None  # is told of a status other than 200
        self.pending: Pending | None = None
        self.status = 499

    @property
    def is_one_too_many(self) -> bool:
        """Whether the connection is over the limit."""
        return self._connection.is_one_too_many

    def carry(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Have ``answer`` write these headers, too."""
        self._lines = b"".join([b"%b: %b\r\n" % header for header in headers])

    def wait_for(self, pending: Pending | None) -> None:
        """Abandon this request if the client hangs up; None when it need not be any more."""
        connection = self._connection
        connection.pending, connection.asking = pending, self._cycle
        if pending is not None:
            self.pending = pending
            if not connection.pipeline:  # a large body has reading paused: nobody would hang up
                connection.flow.resume_reading()

    async def answer(self, head: bytes, body: bytes, status: int = 200) -> None:
        """These header lines, each with its line end, and this body; the request's is read."""
        connection, cycle = self._connection, self._cycle
        if connection.flow.write_paused and not cycle.disconnected:
            await connection.flow.drain()
        if self.compresses and len(body) >= GZIP_BYTES:
            body = await compressed(body)
            head += _GZIPPED
        if cycle.disconnected:
            return
        self.status = status
        if status != 200 and self.note is not None:
            self.note(status)
        cycle.response_started = cycle.response_complete = True
        lines = [STATUS_LINE[status]]
        for name, value in connection.server_state.default_headers:
            lines += (name, b": ", value, b"\r\n")
        if not cycle.keep_alive and CLOSE not in connection.server_state.default_headers:
            lines.append(b"connection: close\r\n")
        lines += (b"content-length: %d\r\n" % len(body), self._lines, head, b"\r\n", body)
        connection.transport.write(b"".join(lines))
        if not cycle.keep_alive:
            connection.transport.close()
        cycle.on_response()


def sweep(connections: Iterable[Any]) -> int:
    """Cut off the clients that stall; call it every ``STALL_SECONDS``."""
    stalling = [c for c in connections if isinstance(c, Connection) and c.stalls()]
    for connection in stalling:
        connection.transport.abort()
    return len(stalling)


def exchange_of(scope: Scope) -> Exchange | None:
    """The exchange of a request, or None under another server."""
    extensions = scope.get("extensions")
    return extensions.get(EXTENSION) if extensions else None
