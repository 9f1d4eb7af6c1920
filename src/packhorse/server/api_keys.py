"""API keys: whether a request has one of those that are let in.

What is kept is digests. A key that is presented is hashed and held against
all of them in a time that does not depend on which fits, or whether one does.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence

from packhorse.client_values import DIGEST_PREFIX, digest_of
from packhorse.errors import UnauthorizedError

CHALLENGE = (b"www-authenticate", b'Bearer realm="packhorse"')

_IDENTITY_DIGITS = 16


class ApiKeys:
    """The keys of ``--api-key``, as it holds them: ``sha256:`` and 64 hexadecimal digits."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = [
            (bytes.fromhex(key), f"key:{key[:_IDENTITY_DIGITS]}")
            for key in (key.removeprefix(DIGEST_PREFIX) for key in keys)
        ]

    def __bool__(self) -> bool:
        return bool(self._keys)

    def identify(self, headers: Mapping[bytes, bytes]) -> str:
        """Who asks, as ``key:`` and the first digits of its digest.

        The key is that of ``Authorization: Bearer``, else of ``X-API-Key``.
        Raises UnauthorizedError.
        """
        presented = _presented(headers)
        if presented is None:
            raise UnauthorizedError(
                "an API key is needed: send it as `Authorization: Bearer KEY` or `X-API-Key: KEY`"
            )
        digest = digest_of(presented)
        found = None
        for known, identity in self._keys:  # all of them, whichever fits
            if hmac.compare_digest(known, digest):
                found = identity
        if found is None:
            raise UnauthorizedError("the API key is not one of this server's")
        return found


def _presented(headers: Mapping[bytes, bytes]) -> bytes | None:
    authorization = headers.get(b"authorization")
    if authorization is not None:
        scheme, _, key = authorization.partition(b" ")
        if scheme.lower() == b"bearer" and key.strip():
            return key.strip()
    return headers.get(b"x-api-key")
