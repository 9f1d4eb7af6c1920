"""The terms of a request: who asks, how urgent it is, and until when an answer is of use."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from packhorse.errors import ValidationError
from packhorse.server.body import Scope

PRIORITIES = {b"high": 1, b"normal": 0, b"low": -1}

KEY_PREFIX = "key:"
"""Of the identity of a client that has shown an API key."""

LONGEST_TIMEOUT = 86_400_000
"""Milliseconds: a day."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What the scheduler goes by.

    client    64 bits that stand for who asks; clients take turns
    owner     the same for a client with an API key, 0 for all others: whose answers may be kept
    priority  higher goes first within a client; 0 is normal
    deadline  time.monotonic() at which the answer is worthless; inf for none
    """

    client: int = 0
    owner: int = 0
    priority: int = 0
    deadline: float = math.inf


ANYONE = Terms()
"""Nobody in particular, in no hurry."""


def terms_of(scope: Scope, started: float, default_timeout: int | None) -> Terms:
    """The terms of the request that began at ``started``; the default is in milliseconds.

    Raises ValidationError for a header that means nothing.
    """
    priority, timeout = 0, default_timeout
    for name, value in scope["headers"]:
        if name == b"x-priority":
            priority = _priority(value)
        elif name == b"x-timeout-ms":
            timeout = _timeout(value)
    deadline = math.inf if timeout is None else started + timeout / 1000
    identity = _identity(scope)
    client = _word(identity)
    return Terms(client, client if identity.startswith(KEY_PREFIX) else 0, priority, deadline)


def _identity(scope: Scope) -> str:
    """Whoever authentication or a trusted proxy named, else the peer's address.

    Peers of a unix socket have no address: they are one client.
    """
    named: str | None = scope.get("packhorse.client")
    if named is not None:
        return named
    peer = scope.get("client")
    return str(peer[0]) if peer else "unix"


@lru_cache(maxsize=4096)
def _word(identity: str) -> int:
    """The same in every process, unlike ``hash``; nobody can choose to share another's turn."""
    return int.from_bytes(blake2b(identity.encode(errors="replace"), digest_size=8).digest())


def _priority(value: bytes) -> int:
    priority = PRIORITIES.get(value.strip().lower())
    if priority is None:
        raise ValidationError(
            f"the header x-priority is {_shown(value)}: send high, normal or low, or leave it out"
        )
    return priority


def _timeout(value: bytes) -> int:
    text = value.strip()
    # isdigit of bytes knows ASCII alone. The length first: a long number costs time to read.
    if len(text) > 8 or not text.isdigit() or not 0 < int(text) <= LONGEST_TIMEOUT:
        raise ValidationError(
            f"the header x-timeout-ms is {_shown(value)}: send a whole number of milliseconds "
            f"from 1 to {LONGEST_TIMEOUT}, or leave it out"
        )
    return int(text)


def _shown(value: bytes) -> str:
    """A header's value for a message, cut where it is long."""
    return repr(value[:40].decode("latin-1"))
