"""CORS: which web pages' scripts may read answers.

The headers are on every answer to an allowed origin, errors too: without them
a page cannot even tell a 429 from a dead server. Keys travel in headers that
the page sets itself, never in cookies, so credentials are not allowed and
``*`` is safe to combine with keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from packhorse.client_values import ANY_ORIGIN
from packhorse.errors import ForbiddenOriginError
from packhorse.server.body import Headers

_VARY = (b"vary", b"origin")
_EXPOSED = (b"access-control-expose-headers", b"*")
_ALLOW_ORIGIN = b"access-control-allow-origin"
_METHODS = (b"access-control-allow-methods", b"GET, HEAD, POST, OPTIONS")
_MAX_AGE = (b"access-control-max-age", b"600")

_USUAL_HEADERS = b"authorization, content-type, x-api-key, x-request-id"
_HEADER_NAMES = re.compile(rb"[\w!#$%&'*+.^`|~, -]{1,1000}", re.ASCII)


class Cors:
    """The origins of ``--cors-allow-origin``."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._any = ANY_ORIGIN in origins
        self._origins = frozenset(origin.encode() for origin in origins)

    def headers(self, headers: Mapping[bytes, bytes]) -> Headers:
        """What every answer to this request carries."""
        origin = headers.get(b"origin")
        if self._any:  # also without Origin: a cache may show the answer to a page
            return [(_ALLOW_ORIGIN, b"*"), _EXPOSED]
        if origin is None or origin.lower() not in self._origins:
            return [_VARY]
        return [(_ALLOW_ORIGIN, origin), _EXPOSED, _VARY]

    def preflight(self, headers: Mapping[bytes, bytes]) -> Headers:
        """What the answer to a preflight carries besides.

        Whatever headers the page wants to send are allowed, by name: the wildcard does not cover
        Authorization. Raises ForbiddenOriginError.
        """
        origin = headers.get(b"origin", b"").lower()
        if not self._any and origin not in self._origins:
            raise ForbiddenOriginError("this origin is not one of those of --cors-allow-origin")
        wanted = headers.get(b"access-control-request-headers", b"")
        allowed = wanted if _HEADER_NAMES.fullmatch(wanted) else _USUAL_HEADERS
        return [_METHODS, (b"access-control-allow-headers", allowed), _MAX_AGE]


def is_preflight(method: str, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a browser asks if it may ask."""
    return (
        method == "OPTIONS" and b"origin" in headers and b"access-control-request-method" in headers
    )
