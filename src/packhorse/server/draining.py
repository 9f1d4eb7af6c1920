"""How a front end ends: what it has received is answered, and clients are sent elsewhere.

retire  another generation serves: take no connection more, answer what comes on those that are
        open, each time with ``Connection: close``, until none is left or they only idle
end     the server ends: serve a moment longer what was on its way when the signal came, then
        answer 503; every answer has ``Connection: close``
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol

from packhorse.server.connection import Connection

GRACE_SECONDS = 0.5
"""What arrives so soon after the signal was on its way, and is served."""

IDLE_SECONDS = 5.0
"""An idle connection of a retired front end is closed after so long."""

LOOK_SECONDS = 0.02


class Drained(Protocol):
    """The server that ends."""

    def close_after_answers(self) -> None:
        """From now on every answer is the last of its connection."""

    @property
    def open_connections(self) -> Iterable[Any]:
        """Those that are open."""


async def until_answered(server: Drained, seconds: float) -> None:
    """Until no request is in work, and for at most so long."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end and any(map(_is_busy, server.open_connections)):
        await asyncio.sleep(LOOK_SECONDS)


async def until_deserted(server: Drained, seconds: float) -> None:
    """Until no connection is open, or those that are have idled long enough."""
    loop = asyncio.get_running_loop()
    end = loop.time() + IDLE_SECONDS
    while loop.time() < end and list(server.open_connections):
        await asyncio.sleep(LOOK_SECONDS)
    await until_answered(server, seconds)


def _is_busy(connection: Any) -> bool:
    return (
        isinstance(connection, Connection)
        and connection.cycle is not None
        and not connection.cycle.response_complete
    )
