"""Request ids: the client's own where it sends one, else ours."""

from __future__ import annotations

import secrets
from itertools import count

LONGEST = 128

_ALLOWED = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.:/+=@~"
_DELETED = bytes(set(range(256)) - set(_ALLOWED))


class RequestIds:
    """Ids of one process: 12 random digits, the same for all of them, and a number."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(6).encode()
        self._numbers = count(1)

    def new(self) -> bytes:
        """One that was not there before; secret it is not."""
        return b"%b-%08x" % (self._prefix, next(self._numbers))

    def of(self, sent: bytes | None) -> bytes:
        """The one that was sent, less what could do harm in a log; a new one if nothing is left."""
        if sent is None:
            return self.new()
        return sent.translate(None, _DELETED)[:LONGEST] or self.new()
