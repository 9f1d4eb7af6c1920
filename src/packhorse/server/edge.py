"""What every request passes, whatever its route: who asks, under which id, and may they.

``App`` calls it before routing, so a route gets all of this for free, and one
that nobody thought of is guarded. What it finds out lies in the scope:

    packhorse.headers     the request's headers as a dictionary; of repeated ones the last
    packhorse.client      who asks: ``key:`` and digits of its digest, else ``addr:`` and an address
    packhorse.request_id  the request's id, for answers, logs and traces
"""

from __future__ import annotations

import time

from packhorse.config import Config
from packhorse.errors import ServedError, TooManyConnectionsError
from packhorse.metrics import REFUSALS
from packhorse.server.access_log import METHODS, log_access
from packhorse.server.api_keys import ApiKeys
from packhorse.server.body import Message, Scope, Send
from packhorse.server.client_address import TrustedProxies
from packhorse.server.connection import Exchange, exchange_of
from packhorse.server.cors import Cors, is_preflight
from packhorse.server.request_ids import RequestIds
from packhorse.server.responses import Headers, send_answer, send_error
from packhorse.tracing import Finished, Stages, Tracing

HEADERS, CLIENT, REQUEST_ID = "packhorse.headers", "packhorse.client", "packhorse.request_id"

HEALTH, METRICS, STATS = "health", "metrics", "stats"
PUBLIC = frozenset({"root", "openapi", "docs", HEALTH, METRICS, STATS})
"""Routes that need no key, by their names in the metrics, unless they are guarded by choice."""


_REFUSALS = {
    status: REFUSALS.word(reason)
    for status, reason in (
        *((401, "unauthorized"), (403, "origin"), (413, "body_too_large"), (429, "overloaded")),
        *((503, "unavailable"), (504, "deadline")),
    )
}
"""Where the answers that are refusals are counted, by status."""


class Entry:
    """One request at the edge.

    headers    what every answer to it carries
    refusal    why it goes no further, or None
    preflight  headers that answer it if it is a preflight, or None
    status     of the answer; 0 until it begins, and if an Exchange wrote it and it is 200
    slot       where a refusal is counted; None where it is not
    """

    __slots__ = ("exchange", "headers", "preflight", "refusal", "slot", "started", "status")

    def __init__(
        self,
        headers: Headers,
        exchange: Exchange | None,
        started: float,
        slot: memoryview[float] | None,
    ) -> None:
        self.slot = slot
        self.headers = headers
        self.exchange = exchange
        self.started = started
        self.refusal: ServedError | None = None
        self.preflight: Headers | None = None
        self.status = 0

    @property
    def ends_here(self) -> bool:
        """Whether ``answer`` is the answer."""
        return self.refusal is not None or self.preflight is not None

    async def answer(self, send: Send) -> None:
        """Refuse the request, or answer the preflight."""
        if self.refusal is not None:
            await send_error(send, self.refusal)
        else:
            await send_answer(send, 204, b"", self.preflight or [])

    def sending(self, send: Send) -> Send:
        """``send`` that adds the headers, and counts refusals."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.note(message["status"])
                message["headers"] = [*message["headers"], *self.headers]
            await send(message)

        return with_headers

    def note(self, status: int) -> None:
        """The status that the answer has; counted where it is a refusal."""
        self.status = status
        if status in _REFUSALS and self.slot is not None:
            self._count(self.slot)

    def _count(self, slot: memoryview[float]) -> None:
        is_one_too_many = isinstance(self.refusal, TooManyConnectionsError)
        slot[REFUSALS.word("connections") if is_one_too_many else _REFUSALS[self.status]] += 1.0


class Edge:
    """The rules of one server."""

    def __init__(
        self, config: Config, slot: memoryview[float], tracing: Tracing | None = None
    ) -> None:
        self._slot = slot
        options = config.network
        self._keys = ApiKeys(options.api_key)
        self._cors = Cors(options.cors_allow_origin) if options.cors_allow_origin else None
        self._proxies = TrustedProxies(options.trusted_proxies) if options.trusted_proxies else None
        self._ids = RequestIds()
        self._tracing = tracing
        self._compresses = options.gzip
        self._logs_access = config.server.access_log
        guarded = {HEALTH} if options.guard_health else set()
        guarded |= {METRICS, STATS} if options.guard_metrics else set()
        self._open = PUBLIC - guarded

    def enter(self, scope: Scope, route: str) -> Entry:
        """Look at a request; ``route`` is its name in the metrics."""
        headers = scope[HEADERS] = dict(scope["headers"])
        request_id = self._ids.of(headers.get(b"x-request-id"))
        scope[REQUEST_ID] = request_id
        exchange = exchange_of(scope)
        entry = Entry([(b"x-request-id", request_id)], exchange, time.monotonic(), self._slot)
        if route == HEALTH:
            entry.slot = None
        if self._cors is not None:
            entry.headers += self._cors.headers(headers)
        if exchange is not None:
            exchange.carry(entry.headers)
            exchange.note = entry.note
            if self._compresses:
                exchange.compresses = b"gzip" in headers.get(b"accept-encoding", b"")
        try:
            self._judge(scope, headers, route, entry)
        except ServedError as error:
            entry.refusal = error
        return entry

    def leave(self, scope: Scope, route: str, entry: Entry) -> None:
        """The request is over."""
        if not self._logs_access and self._tracing is None:
            return
        status, now = _status_of(entry), time.monotonic()
        if self._logs_access:
            log_access(scope, route, status, now - entry.started)
        if self._tracing is not None:
            finished = Finished(
                scope["method"] if scope["method"] in METHODS else "_OTHER",
                None if route == "unmatched" else scope["path"],
                status,
                scope[REQUEST_ID].decode(),
                entry.started,
                now,
                _stages_of(entry),
            )
            self._tracing.record(finished, scope[HEADERS])

    def _judge(self, scope: Scope, headers: dict[bytes, bytes], route: str, entry: Entry) -> None:
        """Raises a ServedError for a request that goes no further."""
        client = scope["client"]
        address: str | None = client[0] if client else None
        if self._proxies is not None:
            address = self._proxies.client(address, scope["headers"])
            scope["client"] = (address, 0) if address else None
        scope[CLIENT] = f"addr:{address or 'unix'}"
        if entry.exchange is not None and entry.exchange.is_one_too_many:
            raise TooManyConnectionsError(
                "there are as many connections as may be (--max-connections)"
            )
        if self._cors is not None and is_preflight(scope["method"], headers):
            entry.preflight = self._cors.preflight(headers)
        elif self._keys and route not in self._open:
            scope[CLIENT] = self._keys.identify(headers)


def id_of(scope: Scope) -> dict[str, str]:
    """What to hand to a logger as ``extra`` for a line about one request."""
    return {"request_id": scope[REQUEST_ID].decode()}


def _stages_of(entry: Entry) -> Stages | None:
    """What an engine did for the request; None when it came to none."""
    pending = entry.exchange.pending if entry.exchange is not None else None
    if pending is None or not pending.parts or not pending.departed:
        return None
    return Stages(
        pending.departed,
        pending.tokenization,
        pending.queue_wait,
        pending.inference,
        pending.count,
        pending.tokens,
        pending.truncated,
        len(pending.parts),
    )


def _status_of(entry: Entry) -> int:
    """499: the client hung up before there was an answer."""
    if entry.status == 0 and entry.exchange is not None:
        return entry.exchange.status
    return entry.status or 499
