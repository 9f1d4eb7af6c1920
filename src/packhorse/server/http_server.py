"""uvicorn as a front end uses it: it parses HTTP; how connections are taken and ended is ours."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from packhorse.channel.board import Board
from packhorse.server.acceptor import Acceptor
from packhorse.server.connection import CLOSE, Connection
from packhorse.server.tls import Tls

KEEP_ALIVE_SECONDS = 75
"""Longer than load balancers keep idle connections (60 s): they must be the ones to close."""


class Server(uvicorn.Server):
    """Uvicorn, but signals are ours, and so is how connections are taken."""

    def __init__(
        self,
        config: uvicorn.Config,
        board: Board,
        slot: int,
        most_connections: int = 10_000,
        tls: Tls | None = None,
    ) -> None:
        super().__init__(config)
        self._most_connections = most_connections
        self._tls = tls
        self._board = board
        self._slot = slot
        self.acceptor: Acceptor | None = None

    def close_after_answers(self) -> None:
        """From now on every answer is the last of its connection, and says so."""
        self.config.encoded_headers.append(CLOSE)  # for the lists that are made from now on
        self.server_state.default_headers = [*self.server_state.default_headers, CLOSE]
        for connection in self.open_connections:
            if isinstance(connection, Connection):
                connection.close_after_answer()

    @property
    def open_connections(self) -> list[object]:
        """Those of clients, idle ones too."""
        return list(self.server_state.connections)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets
        self.acceptor = Acceptor(
            sockets[0],
            self._connection,
            self.server_state.connections,
            self._board,
            self._slot,
            self._most_connections,
            None if self._tls is None else self._tls.context,
        )
        self.servers = [self.acceptor]  # type: ignore[list-item]
        self.started = True

    def _connection(self) -> Connection:
        return Connection(config=self.config, server_state=self.server_state, app_state={})


def uvicorn_config(app: ASGIApp, drain_seconds: int) -> uvicorn.Config:
    """Only what is HTTP: logging, signals, proxies and the life of a process are elsewhere.

    ``drain_seconds`` is how long uvicorn waits for answers before it cuts them off.
    """
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=drain_seconds,
    )
