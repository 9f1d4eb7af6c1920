"""Messages of any size between two processes, over a SEQPACKET socket that never blocks.

The kernel keeps the bounds and the order of messages, tells of the peer's
death and frees everything when a process dies. A message larger than a
fragment is sent in several; the sender buffers what the kernel does not take
at once, and says when that is too much.

Fragment: magic and version (uint16), flags (uint16), length of the message in bytes (uint32, in
every fragment), then payload. Fragments of one message follow each other without others between.
"""

from __future__ import annotations

import socket
import struct
from collections import deque

FRAGMENT = 131072
"""Most payload bytes in one fragment. Larger ones are hardly faster (128 KiB: 4.7 GB/s, 64 KiB:
3.8, 16 KiB: 1.6 on a 2 GHz Xeon)."""

SEND_BUFFER = 1 << 20
"""Asked of the kernel, which gives less where net.core.wmem_max is less. On a busy machine each
time the buffer is full costs a time slice: a round trip of 1 MB took a fifth with this."""

PENDING_LIMIT = 64 * 1024 * 1024
"""Buffered bytes from which on a channel calls itself full."""

_MAGIC = 0x5048 + 1  # "PH" and the version of this framing
_HEADER = struct.Struct("=HHI")  # 8 bytes, so that 8-byte numbers in the payload stay aligned
_FIRST, _LAST = 1, 2

Bytes = bytes | bytearray | memoryview


class ChannelClosedError(Exception):
    """The peer is gone: whatever was sent and not answered is lost."""


class ChannelFullError(Exception):
    """More than the limit is buffered: the peer does not read. Nothing was sent."""


class ProtocolError(Exception):
    """The peer does not speak this version of the protocol."""


class Channel:
    """One end of a connection. Not safe for several threads."""

    def __init__(self, sock: socket.socket, pending_limit: int = PENDING_LIMIT) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self._socket = sock
        # The kernel refuses a datagram that is larger than its buffer.
        self._most = min(FRAGMENT, sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2)
        self._pending_limit = pending_limit
        self._unsent: deque[tuple[bytes, memoryview]] = deque()
        self._assembled: bytearray | None = None  # a message of which fragments are missing
        self._filled = 0
        self._fragment = bytearray(_HEADER.size + FRAGMENT)
        self.pending = 0

    def fileno(self) -> int:
        """For a selector or an event loop."""
        return self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether something is buffered: call ``flush`` when the socket is writable."""
        return bool(self._unsent)

    @property
    def full(self) -> bool:
        """Whether ``send`` would refuse."""
        return self.pending >= self._pending_limit

    def send(self, message: bytes) -> None:
        """Send, or buffer what the kernel does not take now.

        The limit is checked before, so one message of any size always passes an idle channel.
        Raises ChannelFullError or ChannelClosedError.
        """
        if self.full:
            raise ChannelFullError
        if len(message) <= self._most:
            header = _HEADER.pack(_MAGIC, _FIRST | _LAST, len(message))
            if self._unsent or not self._send_fragment(header, message):
                self._keep(header, memoryview(message))
            return
        self._split(message)
        self.flush()

    def flush(self) -> None:
        """Send of what is buffered as much as the kernel takes.

        Raises ChannelClosedError.
        """
        while self._unsent and self._send_fragment(*self._unsent[0]):
            self.pending -= len(self._unsent.popleft()[1])

    def receive(self) -> Bytes | None:
        """The next message, or None when it has not arrived, or not all of it.

        Raises ChannelClosedError when the peer is gone, ProtocolError when it is no Packhorse.
        """
        message: Bytes | None = None
        try:
            while message is None:
                if self._assembled is None:
                    message = self._receive_first()
                else:
                    message = self._receive_more(self._assembled)
            return message
        except BlockingIOError:
            return None
        except OSError as error:
            raise ChannelClosedError from error

    def close(self) -> None:
        """Hang up; the peer notices at once."""
        self._socket.close()
        self._unsent.clear()
        self.pending = 0

    def _receive_first(self) -> bytes | None:
        """A message of one fragment, or None after the first of several."""
        size = self._socket.recv_into(self._fragment)
        flags, length = self._checked_header(size)
        if not flags & _FIRST:
            raise ProtocolError("a message does not begin with its first fragment")
        payload = memoryview(self._fragment)[_HEADER.size : size]
        if flags & _LAST:
            return bytes(payload)
        self._assembled = bytearray(length)
        self._filled = len(payload)
        self._assembled[: self._filled] = payload
        return None

    def _receive_more(self, message: bytearray) -> bytearray | None:
        """The message when the fragment was its last; put straight to its place."""
        header = memoryview(self._fragment)[: _HEADER.size]
        missing = memoryview(message)[self._filled :]
        size = self._socket.recvmsg_into([header, missing])[0]
        flags, length = self._checked_header(size)
        self._filled += size - _HEADER.size
        if flags & _FIRST or length != len(message):
            raise ProtocolError("a fragment of another message came in between")
        if not flags & _LAST:
            return None
        if self._filled != length:
            raise ProtocolError(f"{self._filled} of {length} bytes arrived")
        self._assembled = None
        return message

    def _checked_header(self, size: int) -> tuple[int, int]:
        """Flags, and the length of the whole message."""
        if size == 0:
            raise ChannelClosedError
        if size < _HEADER.size:
            raise ProtocolError("a datagram is shorter than a header")
        magic, flags, length = _HEADER.unpack_from(self._fragment)
        if magic != _MAGIC:
            raise ProtocolError(f"expected magic {_MAGIC:#x}, not {magic:#x}")
        if flags & _FIRST and flags & _LAST and length != size - _HEADER.size:
            raise ProtocolError(f"{size - _HEADER.size} of {length} bytes arrived")
        return int(flags), int(length)

    def _send_fragment(self, header: bytes, payload: Bytes) -> bool:
        """False when the kernel's buffer is full."""
        try:
            self._socket.sendmsg((header, payload))
        except BlockingIOError:
            return False
        except OSError as error:
            raise ChannelClosedError from error
        return True

    def _keep(self, header: bytes, payload: memoryview) -> None:
        self._unsent.append((header, payload))
        self.pending += len(payload)

    def _split(self, message: bytes) -> None:
        view = memoryview(message)
        for start in range(0, len(message), self._most):
            flags = _FIRST if start == 0 else 0
            flags |= _LAST if start + self._most >= len(message) else 0
            self._keep(_HEADER.pack(_MAGIC, flags, len(message)), view[start : start + self._most])
