"""The socket that HTTP clients connect to."""

from __future__ import annotations

import errno
import os
import socket

from packhorse.errors import ConfigError


def bind(hostname: str, port: int) -> socket.socket:
    """A bound TCP socket; nobody can connect before ``listen``.

    Without SO_REUSEPORT, so that a second server on the same port fails.
    Raises ConfigError saying which setting to change.
    """
    family, kind, protocol, address = _resolved(hostname, port)
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6 and hostname in ("::", ""):
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # IPv4 as well
    try:
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise ConfigError(_reason(error, hostname, port)) from None
    return sock


def url_of(sock: socket.socket) -> str:
    """Where it can be reached."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _resolved(
    hostname: str, port: int
) -> tuple[
    socket.AddressFamily, socket.SocketKind, int, tuple[str, int] | tuple[str, int, int, int]
]:
    try:
        found = socket.getaddrinfo(
            hostname or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as error:
        raise ConfigError(f"--hostname {hostname}: {error.strerror}") from None
    family, kind, protocol, _, address = found[0]
    return family, kind, protocol, address  # type: ignore[return-value]


def _reason(error: OSError, hostname: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {hostname} is taken by another process: "
            "stop that one or choose another port (--port)"
        )
    if error.errno == errno.EACCES:
        return f"port {port} needs more rights: choose one above 1023 (--port)"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{hostname} is not an address of this machine (--hostname)"
    return f"cannot listen on {hostname}, port {port}: {os.strerror(error.errno or 0)}"
