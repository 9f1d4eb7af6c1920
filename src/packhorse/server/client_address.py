"""Who a client is when proxies stand between: only proxies that are trusted are believed.

A proxy appends the address that it was asked from. So the list is read from
its end, as long as the one who reports is trusted; the first that is not is
the client. What stands before it, anybody may have written.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

from packhorse.client_values import UNIX_PEERS

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class TrustedProxies:
    """The networks of ``--trusted-proxies``."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._trusts_unix = UNIX_PEERS in networks
        self._networks = [ipaddress.ip_network(n) for n in networks if n != UNIX_PEERS]

    def client(self, peer: str | None, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        """The client's address; ``peer`` is that of the connection, None for a Unix socket.

        X-Forwarded-For counts; Forwarded (RFC 7239) where it is missing.
        """
        if not self._trusts(peer):
            return peer
        client = peer
        for reported in reversed(_reported(headers)):
            address = _parsed(reported)
            if address is None:  # unknown, or hidden on purpose: the last that is known must do
                return client
            client = str(address)
            if not self._trusts(client):
                return client
        return client

    def _trusts(self, peer: str | None) -> bool:
        if peer is None:
            return self._trusts_unix
        address = _parsed(peer)
        return address is not None and any(address in network for network in self._networks)


def _reported(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """The addresses as they were reported, the nearest last."""
    x_forwarded_for = [value for name, value in headers if name == b"x-forwarded-for"]
    if x_forwarded_for:
        return b",".join(x_forwarded_for).decode("latin-1").split(",")
    forwarded = b",".join(value for name, value in headers if name == b"forwarded")
    if not forwarded:
        return []
    return [_for_of(element) for element in forwarded.decode("latin-1").split(",")]


def _for_of(element: str) -> str:
    for pair in element.split(";"):
        name, _, value = pair.strip().partition("=")
        if name.lower() == "for":
            return value
    return ""


def _parsed(text: str) -> _Address | None:
    """An address with or without a port: 1.2.3.4, 1.2.3.4:80, ::1, [::1], "[::1]:80"."""
    bare = text.strip().strip('"')
    if bare.startswith("["):
        bare = bare[1:].partition("]")[0]
    elif bare.count(":") == 1:
        bare = bare.partition(":")[0]
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
