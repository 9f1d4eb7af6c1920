"""Every message comes back as it was, and a broken one is an error."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from packhorse.channel import codec
from packhorse.channel.channel import ProtocolError
from packhorse.channel.codec import Kind
from packhorse.request import Arrivals, Completions, Sequences, bounds_of

INT32 = st.integers(-(2**31), 2**31 - 1)
UINT64 = st.integers(0, 2**64 - 1)


def same(one: object, other: object) -> None:
    """Assert that two optional arrays are equal in type, shape and values, NaN included."""
    if one is None or other is None:
        assert one is other
        return
    assert isinstance(one, np.ndarray)
    assert isinstance(other, np.ndarray)
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(one, other)


@st.composite
def arrivals(draw: st.DrawFn) -> Arrivals:
    counts = np.array(draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)), np.int32)
    n = int(counts.sum())
    lengths = np.array(draw(st.lists(st.integers(1, 6), min_size=n, max_size=n)), np.int32)
    t, r = int(lengths.sum()), len(counts)
    int32 = np.int32
    return Arrivals(
        tickets=draw(arrays.arrays(np.uint64, r, elements=UINT64)),
        counts=counts,
        clients=draw(arrays.arrays(np.uint64, r, elements=UINT64)),
        priorities=draw(arrays.arrays(np.int8, r)),
        deadlines=draw(arrays.arrays(np.float64, r, elements=st.floats(0, math.inf))),
        sequences=Sequences(
            input_ids=draw(arrays.arrays(int32, t, elements=INT32)),
            cu_seqlens=bounds_of(lengths),
            truncated=np.zeros(n, np.bool_),
            segment_starts=draw(st.none() | arrays.arrays(int32, n, elements=INT32)),
            position_ids=draw(st.none() | arrays.arrays(int32, t, elements=INT32)),
            token_level=draw(st.none() | arrays.arrays(np.bool_, n)),
            marks=draw(st.none() | arrays.arrays(int32, n, elements=INT32)),
        ),
        arrived=draw(st.floats(0, 1e12)),
    )


@st.composite
def completions(draw: st.DrawFn) -> Completions:
    counts = np.array(draw(st.lists(st.integers(1, 4), max_size=5)), np.int32)
    p, n, width = len(counts), int(counts.sum()), draw(st.integers(1, 4))
    row_counts = draw(st.none() | arrays.arrays(np.int32, n, elements=st.integers(0, 3)))
    rows = n if row_counts is None else int(row_counts.sum())
    return Completions(
        tickets=draw(arrays.arrays(np.uint64, p, elements=UINT64)),
        offsets=draw(arrays.arrays(np.int32, p, elements=INT32)),
        counts=counts,
        codes=draw(arrays.arrays(np.uint8, n)),
        values=draw(arrays.arrays(np.float32, (rows, width))),
        queue_wait=draw(arrays.arrays(np.float32, p)),
        inference=draw(st.floats(0, 1e6)),
        row_counts=row_counts,
    )


@settings(max_examples=60, deadline=None)
@given(arrivals())
def test_arrivals_come_back(sent: Arrivals) -> None:
    message = codec.encode_arrivals(sent)
    assert codec.kind_of(message) is Kind.ARRIVALS
    got = codec.decode_arrivals(message)
    for name in ("tickets", "counts", "clients", "priorities", "deadlines"):
        same(getattr(sent, name), getattr(got, name))
    for name in ("input_ids", "cu_seqlens", "segment_starts", "position_ids", "token_level"):
        same(getattr(sent.sequences, name), getattr(got.sequences, name))
    assert got.arrived == sent.arrived


@settings(max_examples=60, deadline=None)
@given(completions())
def test_completions_come_back(sent: Completions) -> None:
    message = codec.encode_completions(sent)
    assert codec.kind_of(message) is Kind.COMPLETIONS
    got = codec.decode_completions(message)
    for name in ("tickets", "offsets", "counts", "codes", "values", "queue_wait", "row_counts"):
        same(getattr(sent, name), getattr(got, name))
    assert got.inference == sent.inference


@given(arrays.arrays(np.uint64, st.integers(0, 5), elements=UINT64))
def test_cancel_comes_back(tickets: np.ndarray) -> None:
    message = codec.encode_cancel(tickets.tolist())
    assert codec.kind_of(message) is Kind.CANCEL
    same(codec.decode_cancel(message), tickets)


def test_info_comes_back() -> None:
    info = {"model_id": "ä", "threads": 2, "dtype": "float32", "nothing": None}
    message = codec.encode_info(info, 7)
    assert codec.kind_of(message) is Kind.INFO
    assert codec.decode_info(message) == (info, 7)


def example() -> Arrivals:
    return Arrivals(
        tickets=np.array([7, 8], np.uint64),
        counts=np.array([1, 2], np.int32),
        clients=np.zeros(2, np.uint64),
        priorities=np.zeros(2, np.int8),
        deadlines=np.full(2, np.inf),
        sequences=Sequences(
            np.arange(9, dtype=np.int32), np.array([0, 2, 5, 9], np.int32), np.zeros(3, np.bool_)
        ),
        arrived=1.5,
    )


def test_decoding_makes_aligned_views() -> None:
    message = codec.encode_arrivals(example())
    got = codec.decode_arrivals(message)
    whole = np.frombuffer(message, np.uint8)
    for array in (got.tickets, got.counts, got.deadlines, got.sequences.input_ids):
        assert np.shares_memory(array, whole)
        assert array.flags.aligned


@pytest.mark.parametrize("kind", ["arrivals", "completions", "cancel"])
def test_any_other_length_is_an_error(kind: str) -> None:
    one_row = Completions(
        np.ones(1, np.uint64),
        np.zeros(1, np.int32),
        np.ones(1, np.int32),
        np.zeros(1, np.uint8),
        np.zeros((1, 3), np.float32),
        np.zeros(1, np.float32),
        0.5,
    )
    message, decode = {
        "arrivals": (codec.encode_arrivals(example()), codec.decode_arrivals),
        "completions": (codec.encode_completions(one_row), codec.decode_completions),
        "cancel": (codec.encode_cancel([1, 2]), codec.decode_cancel),
    }[kind]
    for size in range(24, len(message)):
        with pytest.raises(ProtocolError):
            decode(message[:size])
    with pytest.raises(ProtocolError):
        decode(message + b"\0")


def test_counts_that_do_not_fit_are_an_error() -> None:
    message = bytearray(codec.encode_arrivals(example()))
    at = message.index(np.array([1, 2], np.int32).tobytes(), 24)
    message[at] = 2
    with pytest.raises(ProtocolError, match="do not fit"):
        codec.decode_arrivals(message)


def test_a_message_of_no_requests_is_an_error() -> None:
    nothing = Sequences(np.zeros(0, np.int32), np.zeros(1, np.int32), np.zeros(0, np.bool_))
    none = np.zeros(0)
    arrivals = Arrivals(none, none, none, none, none, nothing, 0.0)  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match="has none"):
        codec.decode_arrivals(codec.encode_arrivals(arrivals))


@pytest.mark.parametrize("message", [b"", b"\1", bytes(24), b"\x09" + bytes(23), b"{" * 30])
def test_other_messages_are_an_error(message: bytes) -> None:
    with pytest.raises(ProtocolError):
        codec.kind_of(message)


def test_info_that_is_no_object_is_an_error() -> None:
    with pytest.raises(ProtocolError):
        codec.decode_info(codec.encode_info({}, 1)[:24] + b"[1]")
