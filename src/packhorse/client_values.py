"""Values of settings that say who may ask: keys, origins, networks.

A key is turned into its SHA-256 digest where it is read, so no configuration
holds one: not in memory, not on the way to a child, not in a log. Keys are
long and random, so a digest without salt or stretching tells nothing of them.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from pathlib import Path
from urllib.parse import urlsplit

from packhorse.errors import ConfigError

DIGEST_PREFIX = "sha256:"
"""A key may be given as this and its digest in hex, as in a file that others can read."""

ANY_ORIGIN = "*"
UNIX_PEERS = "unix"
"""Among trusted proxies: whoever connects to the Unix socket."""

_DIGEST = re.compile(DIGEST_PREFIX + "[0-9a-f]{64}")
_KEY = re.compile(r"[\x21-\x7e]+")


def digest_of(key: bytes) -> bytes:
    """The 32 bytes that stand for a key."""
    return hashlib.sha256(key).digest()


def parse_keys(text: str) -> tuple[str, ...]:
    """Keys separated by commas, as digests: ``sha256:…``; raises ValueError.

    Reading digests gives the same digests.
    """
    keys = [key.strip() for key in text.split(",")]
    if not all(map(_KEY.fullmatch, keys)):
        raise ValueError("a key is empty, or has blanks or characters other than visible ASCII")
    digests = [
        key if _DIGEST.fullmatch(key) else DIGEST_PREFIX + digest_of(key.encode()).hex()
        for key in keys
    ]
    return tuple(dict.fromkeys(digests))


def read_keys(file: Path) -> tuple[str, ...]:
    """The keys of a file, one a line; lines that are empty or begin with # are none.

    Raises ConfigError.
    """
    try:
        lines = file.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise ConfigError(f"--api-key-file {file}: {reason}") from None
    keys: list[str] = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            if "," in line:
                raise ConfigError(f"--api-key-file {file}, line {number}: one key a line")
            try:
                keys += parse_keys(line)
            except ValueError as error:
                raise ConfigError(f"--api-key-file {file}, line {number}: {error}") from None
    if not keys:  # whoever names a file wants a guarded server
        raise ConfigError(f"--api-key-file {file}: there is no key in it")
    return tuple(dict.fromkeys(keys))


def parse_origins(text: str) -> tuple[str, ...]:
    """Origins separated by commas, as browsers send them, or ``*``; raises ValueError."""
    origins = tuple(dict.fromkeys(one.strip().lower().rstrip("/") for one in text.split(",")))
    for origin in origins:
        if origin != ANY_ORIGIN and not _is_origin(origin):
            raise ValueError(f"{origin!r} is neither * nor an origin such as https://app.example")
    return origins


def _is_origin(text: str) -> bool:
    try:
        parts = urlsplit(text)
        port = parts.port  # raises ValueError for one that is no number
    except ValueError:
        return False
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
    return bool(parts.scheme and host) and text == (
        f"{parts.scheme}://{host}" + ("" if port is None else f":{port}")
    )


def parse_networks(text: str) -> tuple[str, ...]:
    """Networks (10.0.0.0/8), addresses and ``unix``, separated by commas; raises ValueError."""
    return tuple(
        word if word == UNIX_PEERS else str(ipaddress.ip_network(word, strict=False))
        for word in (one.strip() for one in text.split(","))
    )
