"""Where requests go: a URL, taken apart once."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from packhorse.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Target:
    """An address to connect to.

    unix_path     of a socket in the file system, or "" for TCP
    is_tls        whether connections are encrypted
    is_verified   whether the server's certificate is checked
    """

    host: str
    port: int
    unix_path: str = ""
    is_tls: bool = False
    is_verified: bool = True

    @property
    def authority(self) -> str:
        """What the Host header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.unix_path else f"{host}:{self.port}"

    def tls_context(self) -> ssl.SSLContext | None:
        """The context of its connections, or None where they are not encrypted."""
        if not self.is_tls:
            return None
        context = ssl.create_default_context()
        if not self.is_verified:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def target_of(url: str, is_verified: bool = True) -> Target:
    """The address that http://HOST[:PORT], https://HOST[:PORT] or unix:PATH means.

    Raises ConfigError for anything else.
    """
    if url.startswith("unix:"):
        path = url.removeprefix("unix:")
        if path:
            return Target("localhost", 0, unix_path=path)
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    is_bare = parts.path in ("", "/") and not parts.query and not parts.fragment
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or not is_bare:
        raise ConfigError(
            f"--url {url}: write http://HOST:PORT, https://HOST:PORT or unix:PATH; "
            "the path goes to --route"
        )
    is_tls = parts.scheme == "https"
    return Target(
        parts.hostname, port or (443 if is_tls else 80), is_tls=is_tls, is_verified=is_verified
    )
