"""What the channel's messages mean: requests and answers as bytes, and back as views.

Every message starts with 24 bytes: kind, flags, two bytes of zeros, three
counts (uint32) and one number (float64). Then come the arrays, the widest
items first, so that each is aligned. Decoding makes views, not copies; sizes
are checked, so a broken message is an error and never a wrong answer. Byte
order and item sizes are the machine's own: both ends are on it.

    ARRIVALS     front end to engine   counts R, N, T   number: when they were queued
    CANCEL       front end to engine   counts R
    COMPLETIONS  engine to front end   counts P, N, width   number: seconds of inference
    INFO         engine to front end   a JSON object; it also says that the engine is ready
"""

from __future__ import annotations

import struct
from collections.abc import Sequence as PySequence
from enum import IntEnum
from typing import Any

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from packhorse.channel.channel import Bytes, ProtocolError
from packhorse.request import Arrivals, Completions, Sequences, TicketArray

_HEADER = struct.Struct("=BBHIIId")
_SEGMENTS, _POSITIONS, _TOKEN_LEVEL = 1, 2, 4  # flags of ARRIVALS: which optional arrays are there
_ROW_COUNTS = 1  # flag of COMPLETIONS: there are not as many rows as sequences


class Kind(IntEnum):
    """The first byte of a message."""

    ARRIVALS = 1
    CANCEL = 2
    COMPLETIONS = 3
    INFO = 4


def kind_of(message: Bytes) -> Kind:
    """Raises ProtocolError for a message that is none of ours."""
    if len(message) < _HEADER.size:
        raise ProtocolError("a message is shorter than its header")
    try:
        return Kind(message[0])
    except ValueError:
        raise ProtocolError(f"unknown kind of message: {message[0]}") from None


def encode_arrivals(arrivals: Arrivals) -> bytes:
    """Requests as one message.

    ``sequences.truncated`` stays behind: the engine has no use for it.
    """
    sequences = arrivals.sequences
    segments, positions = sequences.segment_starts, sequences.position_ids
    token_level = sequences.token_level
    flags = (0 if segments is None else _SEGMENTS) | (0 if positions is None else _POSITIONS)
    flags |= 0 if token_level is None else _TOKEN_LEVEL
    header = _HEADER.pack(
        Kind.ARRIVALS,
        flags,
        0,
        len(arrivals.tickets),
        len(sequences),
        sequences.num_tokens,
        arrivals.arrived,
    )
    return b"".join(
        (
            header,
            _bytes_of(arrivals.tickets, np.uint64),
            _bytes_of(arrivals.clients, np.uint64),
            _bytes_of(arrivals.deadlines, np.float64),
            _bytes_of(arrivals.counts, np.int32),
            _bytes_of(sequences.cu_seqlens, np.int32),
            _bytes_of(sequences.input_ids, np.int32),
            b"" if segments is None else _bytes_of(segments, np.int32),
            b"" if positions is None else _bytes_of(positions, np.int32),
            _bytes_of(arrivals.priorities, np.int8),
            b"" if token_level is None else _bytes_of(token_level, np.bool_),
        )
    )


def decode_arrivals(message: Bytes) -> Arrivals:
    """Raises ProtocolError when the sizes do not fit each other."""
    _, flags, _, count, num_sequences, num_tokens, arrived = _HEADER.unpack_from(message)
    columns = _Columns(message)
    tickets = columns.take(np.uint64, count)
    clients = columns.take(np.uint64, count)
    deadlines = columns.take(np.float64, count)
    counts = columns.take(np.int32, count)
    cu_seqlens = columns.take(np.int32, num_sequences + 1)
    input_ids = columns.take(np.int32, num_tokens)
    segments = columns.take(np.int32, num_sequences) if flags & _SEGMENTS else None
    positions = columns.take(np.int32, num_tokens) if flags & _POSITIONS else None
    priorities = columns.take(np.int8, count)
    token_level = columns.take(np.bool_, num_sequences) if flags & _TOKEN_LEVEL else None
    columns.end()
    if counts.sum() != num_sequences or cu_seqlens[0] != 0 or cu_seqlens[-1] != num_tokens:
        raise ProtocolError("counts of sequences and tokens do not fit each other")
    truncated = np.zeros(num_sequences, np.bool_)
    sequences = Sequences(input_ids, cu_seqlens, truncated, segments, positions, token_level)
    return Arrivals(tickets, counts, clients, priorities, deadlines, sequences, arrived)


def encode_cancel(tickets: PySequence[int]) -> bytes:
    """Requests that nobody waits for any more."""
    header = _HEADER.pack(Kind.CANCEL, 0, 0, len(tickets), 0, 0, 0.0)
    return header + np.array(tickets, np.uint64).tobytes()


def decode_cancel(message: Bytes) -> TicketArray:
    """Raises ProtocolError when the size is wrong."""
    columns = _Columns(message)
    tickets: TicketArray = columns.take(np.uint64, _HEADER.unpack_from(message)[3])
    columns.end()
    return tickets


def encode_completions(completions: Completions) -> bytes:
    """Answers as one message."""
    num_parts, num_sequences = len(completions.tickets), len(completions.codes)
    width, row_counts = completions.values.shape[1], completions.row_counts
    flags = 0 if row_counts is None else _ROW_COUNTS
    return b"".join(
        (
            _HEADER.pack(
                Kind.COMPLETIONS, flags, 0, num_parts, num_sequences, width, completions.inference
            ),
            _bytes_of(completions.tickets, np.uint64),
            _bytes_of(completions.offsets, np.int32),
            _bytes_of(completions.counts, np.int32),
            _bytes_of(completions.queue_wait, np.float32),
            b"" if row_counts is None else _bytes_of(row_counts, np.int32),
            _bytes_of(completions.values, np.float32),
            _bytes_of(completions.codes, np.uint8),
        )
    )


def decode_completions(message: Bytes) -> Completions:
    """Raises ProtocolError when the sizes do not fit each other."""
    _, flags, _, num_parts, num_sequences, width, inference = _HEADER.unpack_from(message)
    columns = _Columns(message)
    tickets = columns.take(np.uint64, num_parts)
    offsets = columns.take(np.int32, num_parts)
    counts = columns.take(np.int32, num_parts)
    queue_wait = columns.take(np.float32, num_parts)
    row_counts, num_rows = None, num_sequences
    if flags & _ROW_COUNTS:
        row_counts = columns.take(np.int32, num_sequences)
        num_rows = int(row_counts.sum())
        if num_rows < 0 or row_counts.min(initial=0) < 0:
            raise ProtocolError("a sequence has a negative number of rows")
    values = columns.take(np.float32, num_rows * width).reshape(num_rows, width)
    codes = columns.take(np.uint8, num_sequences)
    columns.end()
    if counts.sum() != num_sequences:
        raise ProtocolError("counts of parts and sequences do not fit each other")
    return Completions(tickets, offsets, counts, codes, values, queue_wait, inference, row_counts)


def encode_info(info: dict[str, Any]) -> bytes:
    """What the engine says of itself, for ``/info``."""
    return _HEADER.pack(Kind.INFO, 0, 0, 0, 0, 0, 0.0) + msgspec.json.encode(info)


def decode_info(message: Bytes) -> dict[str, Any]:
    """Raises ProtocolError when it is not a JSON object."""
    try:
        return msgspec.json.decode(memoryview(message)[_HEADER.size :], type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ProtocolError(f"info: {error}") from None


class _Columns:
    """Takes one array after the other out of a message."""

    __slots__ = ("_at", "_message")

    def __init__(self, message: Bytes) -> None:
        self._message = message
        self._at = _HEADER.size

    def take(self, dtype: DTypeLike, count: int) -> NDArray[Any]:
        """The next ``count`` items, as a view."""
        try:
            array = np.frombuffer(self._message, dtype, count, self._at)
        except ValueError:
            raise ProtocolError("a message is shorter than it says") from None
        self._at += array.nbytes
        return array

    def end(self) -> None:
        """Raise ProtocolError if something is left."""
        if self._at != len(self._message):
            raise ProtocolError("a message is longer than it says")


def _bytes_of(array: NDArray[Any], dtype: DTypeLike) -> memoryview:
    return np.ascontiguousarray(array, dtype).data
