"""The socket that HTTP clients connect to."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator

from packhorse.config import Config
from packhorse.errors import ConfigError
from packhorse.server.tls import tls_of

_UNIX_MASK = 0o117
"""Of a Unix socket: its owner and its group may connect."""


@contextlib.contextmanager
def bound(config: Config) -> Iterator[socket.socket]:
    """The socket that the settings ask for; nothing is left of it at the end.

    Raises ConfigError, also for a certificate that cannot be used: it is found out first.
    """
    tls_of(config.network)
    path = config.network.uds
    if path is None:
        with contextlib.closing(bind(config.server.hostname, config.server.port)) as sock:
            yield sock
        return
    with contextlib.closing(bind_unix(path)) as sock:
        made = os.stat(path).st_ino
        try:
            yield sock
        finally:
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_ino == made:  # else it is another server's by now
                    os.unlink(path)


def bind_unix(path: str) -> socket.socket:
    """A bound Unix socket; one that a dead server left there is replaced.

    Raises ConfigError.
    """
    if os.path.lexists(path):
        _remove_dead(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(_UNIX_MASK)
    try:
        sock.bind(path)
        sock.listen()  # at once: a socket that nobody listens on is taken for a dead server's
    except OSError as error:
        sock.close()
        raise ConfigError(f"--uds {path}: {error.strerror or error}") from None
    finally:
        os.umask(mask)
    return sock


def _remove_dead(path: str) -> None:
    """Remove a socket that nobody listens on; raises ConfigError for anything else."""
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise ConfigError(f"--uds {path}: there is a file that is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError as error:
            raise ConfigError(f"--uds {path}: {error.strerror}") from None
    raise ConfigError(f"--uds {path}: another process listens there")


def bind(hostname: str, port: int) -> socket.socket:
    """A bound TCP socket; nobody can connect before ``listen``.

    Without SO_REUSEPORT, so that a second server on the same port fails.
    Raises ConfigError saying which setting to change.
    """
    if hostname.startswith("[") and hostname.endswith("]"):
        hostname = hostname[1:-1]  # an IPv6 address as in a URL
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


def url_of(sock: socket.socket, scheme: str = "http") -> str:
    """Where it can be reached; ``unix:`` and the path for a Unix socket."""
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


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
