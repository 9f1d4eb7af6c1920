"""What the channel's messages mean: requests and answers as bytes, and back as views.

Every message starts with 24 bytes: kind, flags, two bytes of zeros, three
counts (uint32) and one number (float64). Then come the arrays, the widest
items first, so that each is aligned. Decoding makes views, not copies; sizes
are checked, so a broken message is an error and never a wrong answer. Byte
order and item sizes are the machine's own: both ends are on it.

    ARRIVALS     front end to engine   counts R, N, T   number: when they were queued
    CANCEL       front end to engine   counts R
    COMPLETIONS  engine to front end   counts P, N, width   number: seconds of inference
    INFO         engine to front end   counts: the front end's number; a JSON object. It also
                                       says that the engine is ready

A ticket's high 16 bits are the number of the front end that gave it, so that tickets of several
are different and an answer shows whose it is; a front end counts in the low 48.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence as PySequence
from enum import IntEnum
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from packhorse.channel.channel import Bytes, ProtocolError
from packhorse.request import Arrivals, Completions, Sequences, TicketArray

NUMBER_SHIFT = 48
"""Bits of a ticket below the number of its front end."""

_HEADER = struct.Struct("=BBHIIId")
_UINT64, _FLOAT64 = np.dtype(np.uint64), np.dtype(np.float64)
_INT32, _FLOAT32 = np.dtype(np.int32), np.dtype(np.float32)
_UINT8, _INT8, _BOOL = np.dtype(np.uint8), np.dtype(np.int8), np.dtype(np.bool_)
# Flags of ARRIVALS: which optional arrays are there.
_SEGMENTS, _POSITIONS, _TOKEN_LEVEL, _MARKS = 1, 2, 4, 8
_ROW_COUNTS = 1  # flag of COMPLETIONS: there are not as many rows as sequences

Column: TypeAlias = "memoryview | array[int] | array[float]"
"""One item for each request, in its own width."""


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
    return encode_requests(
        tickets=_bytes_of(arrivals.tickets, _UINT64),
        clients=_bytes_of(arrivals.clients, _UINT64),
        deadlines=_bytes_of(arrivals.deadlines, _FLOAT64),
        counts=_bytes_of(arrivals.counts, _INT32),
        priorities=_bytes_of(arrivals.priorities, _INT8),
        sequences=arrivals.sequences,
        arrived=arrivals.arrived,
    )


def encode_requests(
    *,
    tickets: Column,
    clients: Column,
    deadlines: Column,
    counts: Column,
    priorities: Column,
    sequences: Sequences,
    arrived: float,
) -> bytes:
    """The same from the columns of ``Arrivals``, each in memory as items of its width."""
    segments, positions = sequences.segment_starts, sequences.position_ids
    token_level, marks = sequences.token_level, sequences.marks
    flags = (0 if segments is None else _SEGMENTS) | (0 if positions is None else _POSITIONS)
    flags |= (0 if token_level is None else _TOKEN_LEVEL) | (0 if marks is None else _MARKS)
    header = _HEADER.pack(
        Kind.ARRIVALS, flags, 0, len(tickets), len(sequences), sequences.num_tokens, arrived
    )
    return b"".join(
        (
            header,
            tickets,
            clients,
            deadlines,
            counts,
            _bytes_of(sequences.cu_seqlens, _INT32),
            _bytes_of(sequences.input_ids, _INT32),
            b"" if segments is None else _bytes_of(segments, _INT32),
            b"" if positions is None else _bytes_of(positions, _INT32),
            b"" if marks is None else _bytes_of(marks, _INT32),
            priorities,
            b"" if token_level is None else _bytes_of(token_level, _BOOL),
        )
    )


def decode_arrivals(message: Bytes) -> Arrivals:
    """Raises ProtocolError when the sizes do not fit each other, or there is no request."""
    _, flags, _, count, num_sequences, num_tokens, arrived = _HEADER.unpack_from(message)
    if not count:
        raise ProtocolError("a message of requests has none")
    segmented, positioned, leveled = flags & _SEGMENTS, flags & _POSITIONS, flags & _TOKEN_LEVEL
    num_words = count + num_sequences + 1 + num_tokens
    num_words += (num_sequences if segmented else 0) + (num_tokens if positioned else 0)
    num_words += num_sequences if flags & _MARKS else 0
    at_words = _HEADER.size + 3 * 8 * count
    at_bytes = at_words + 4 * num_words
    _check_size(message, at_bytes + count + (num_sequences if leveled else 0))
    # A view for each width of item, and slices of it: a view of the message costs four slices.
    longs = np.frombuffer(message, _UINT64, 3 * count, _HEADER.size)
    words = np.frombuffer(message, _INT32, num_words, at_words)
    tickets, clients = longs[:count], longs[count : 2 * count]
    deadlines = longs[2 * count :].view(_FLOAT64)
    bounds = count + num_sequences + 1
    counts, cu_seqlens = words[:count], words[count:bounds]
    input_ids = words[bounds : bounds + num_tokens]
    rest = words[bounds + num_tokens :]
    segments = positions = marks = None
    if segmented:
        segments, rest = rest[:num_sequences], rest[num_sequences:]
    if positioned:
        positions, rest = rest[:num_tokens], rest[num_tokens:]
    if flags & _MARKS:
        marks = rest
    priorities = np.frombuffer(message, _INT8, count, at_bytes)
    token_level = None
    if leveled:
        token_level = np.frombuffer(message, _BOOL, num_sequences, at_bytes + count)
    total = counts.item(0) if count == 1 else counts.sum()
    if total != num_sequences or cu_seqlens.item(0) or cu_seqlens.item(-1) != num_tokens:
        raise ProtocolError("counts of sequences and tokens do not fit each other")
    truncated = np.zeros(num_sequences, np.bool_)
    sequences = Sequences(input_ids, cu_seqlens, truncated, segments, positions, token_level, marks)
    return Arrivals(tickets, counts, clients, priorities, deadlines, sequences, arrived)


def encode_cancel(tickets: PySequence[int]) -> bytes:
    """Requests that nobody waits for any more."""
    header = _HEADER.pack(Kind.CANCEL, 0, 0, len(tickets), 0, 0, 0.0)
    return header + np.array(tickets, _UINT64).tobytes()


def decode_cancel(message: Bytes) -> TicketArray:
    """Raises ProtocolError when the size is wrong."""
    count = _HEADER.unpack_from(message)[3]
    _check_size(message, _HEADER.size + 8 * count)
    tickets: TicketArray = np.frombuffer(message, _UINT64, count, _HEADER.size)
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
            _bytes_of(completions.tickets, _UINT64),
            _bytes_of(completions.offsets, _INT32),
            _bytes_of(completions.counts, _INT32),
            _bytes_of(completions.queue_wait, _FLOAT32),
            b"" if row_counts is None else _bytes_of(row_counts, _INT32),
            _bytes_of(completions.values, _FLOAT32),
            _bytes_of(completions.codes, _UINT8),
        )
    )


def decode_completions(message: Bytes) -> Completions:
    """Raises ProtocolError when the sizes do not fit each other."""
    _, flags, _, num_parts, num_sequences, width, inference = _HEADER.unpack_from(message)
    at_words = _HEADER.size + 8 * num_parts
    at_values = 3 * num_parts  # in words
    num_rows, row_counts = num_sequences, None
    if flags & _ROW_COUNTS:
        at_counts = at_words + 4 * at_values
        _check_size(message, at_counts + 4 * num_sequences, exactly=False)
        row_counts = np.frombuffer(message, _INT32, num_sequences, at_counts)
        at_values += num_sequences
        num_rows = int(row_counts.sum())
        if num_rows < 0 or row_counts.min(initial=0) < 0:
            raise ProtocolError("a sequence has a negative number of rows")
    num_words = at_values + num_rows * width
    _check_size(message, at_words + 4 * num_words + num_sequences)
    tickets = np.frombuffer(message, _UINT64, num_parts, _HEADER.size)
    words = np.frombuffer(message, _INT32, num_words, at_words)
    offsets, counts = words[:num_parts], words[num_parts : 2 * num_parts]
    queue_wait = words[2 * num_parts : 3 * num_parts].view(_FLOAT32)
    values = words[at_values:].view(_FLOAT32).reshape(num_rows, width)
    codes = np.frombuffer(message, _UINT8, num_sequences, at_words + 4 * num_words)
    if (counts[0] if num_parts == 1 else counts.sum()) != num_sequences:
        raise ProtocolError("counts of parts and sequences do not fit each other")
    return Completions(tickets, offsets, counts, codes, values, queue_wait, inference, row_counts)


def encode_info(info: dict[str, Any], number: int) -> bytes:
    """What the engine says of itself, for ``/info``, and the number it knows a front end by."""
    return _HEADER.pack(Kind.INFO, 0, 0, number, 0, 0, 0.0) + msgspec.json.encode(info)


def decode_info(message: Bytes) -> tuple[dict[str, Any], int]:
    """Raises ProtocolError when it is not a JSON object."""
    number = _HEADER.unpack_from(message)[3]
    try:
        info = msgspec.json.decode(memoryview(message)[_HEADER.size :], type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ProtocolError(f"info: {error}") from None
    return info, number


def _check_size(message: Bytes, size: int, *, exactly: bool = True) -> None:
    """Raise ProtocolError for a message of another size, or a smaller one."""
    if len(message) < size:
        raise ProtocolError("a message is shorter than it says")
    if exactly and len(message) > size:
        raise ProtocolError("a message is longer than it says")


def _bytes_of(array: NDArray[Any], dtype: np.dtype[Any]) -> memoryview:
    if array.dtype == dtype and array.flags.c_contiguous:
        return array.data
    return np.ascontiguousarray(array, dtype).data
