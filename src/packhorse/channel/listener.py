"""Where an engine is reached, and who may reach it.

The supervisor listens and lends the socket to one engine process after the
other, so a front end connects while an engine is being replaced and is
accepted when the new one is ready.

The name is an abstract one (unix(7)): nothing is on disk, so nothing is left
behind by a kill -9 and a read-only file system does not matter. A private
folder's protection is replaced by the kernel's word on who the peer is: it
must have our user id, and a process id that is visible from here, which a
process in another container that shares only our network has not.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct

from packhorse.channel.channel import PENDING_LIMIT, Channel

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: struct ucred of unix(7)


class StrangerError(Exception):
    """The peer is another user's process, or lives in another container."""


def listen() -> socket.socket:
    """A socket for one engine, under a name that nobody else has."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(b"\0packhorse-" + secrets.token_hex(16).encode())
    listener.listen(128)
    listener.setblocking(False)
    return listener


def address_of(listener: socket.socket) -> bytes:
    """What ``connect`` needs."""
    return bytes(listener.getsockname())


def connect(address: bytes) -> Channel:
    """A channel to the engine that accepts there, now or when it is ready.

    Raises StrangerError, or OSError when nobody listens or too many wait.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.setblocking(False)
    try:
        sock.connect(address)
        check_peer(sock)
    except BaseException:
        sock.close()
        raise
    return Channel(sock)


def accept(listener: socket.socket, unread_limit: int = PENDING_LIMIT) -> Channel | None:
    """The next front end; None when there is none, or it was a stranger.

    unread_limit  bytes that it may leave unread before the channel to it is full
    """
    try:
        sock, _ = listener.accept()
    except BlockingIOError:
        return None
    try:
        check_peer(sock)
    except StrangerError:
        sock.close()
        return None
    return Channel(sock, unread_limit)


def check_peer(sock: socket.socket) -> None:
    """Raise StrangerError unless the peer is this user's process and visible from here."""
    pid, uid, _ = _CREDENTIALS.unpack(
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    if uid != os.geteuid() or pid == 0:
        raise StrangerError(f"refused a connection of user {uid}, process {pid}")
