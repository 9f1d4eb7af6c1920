"""Messages through a real socket pair: any size, never blocking, the peer's death noticed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.channel import listener
from packhorse.channel.channel import (
    FRAGMENT,
    Channel,
    ChannelClosedError,
    ChannelFullError,
    ProtocolError,
)

Pair = tuple[Channel, Channel]


def make_pair(pending_limit: int = 64 << 20) -> Pair:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(ours, pending_limit), Channel(theirs, pending_limit)


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = make_pair()
    yield ours, theirs
    ours.close()
    theirs.close()


def exchange(sender: Channel, receiver: Channel, count: int) -> list[bytes]:
    """Let both ends work until ``count`` messages have arrived."""
    received: list[bytes] = []
    end = time.monotonic() + 20
    while len(received) < count:
        sender.flush()
        while (message := receiver.receive()) is not None:
            received.append(bytes(message))
        assert time.monotonic() < end
    return received


@pytest.mark.parametrize(
    "size", [0, 1, 400, FRAGMENT - 1, FRAGMENT, FRAGMENT + 1, 3 * FRAGMENT, 5_000_000]
)
def test_any_size_arrives_whole(pair: Pair, size: int) -> None:
    message = os.urandom(size)
    pair[0].send(message)
    assert exchange(*pair, 1) == [message]
    assert pair[0].pending == 0
    assert pair[1].receive() is None


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 3 * FRAGMENT), min_size=1, max_size=12), seed=st.integers(0))
def test_many_messages_keep_their_order_and_bounds(sizes: list[int], seed: int) -> None:
    sender, receiver = make_pair()
    messages = [bytes([(seed + index) % 256]) * size for index, size in enumerate(sizes)]
    try:
        for message in messages:
            sender.send(message)
        assert exchange(sender, receiver, len(messages)) == messages
    finally:
        sender.close()
        receiver.close()


def test_a_kernel_that_gives_small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packhorse.channel.channel.SEND_BUFFER", 1)
    sender, receiver = make_pair()
    messages = [os.urandom(size) for size in (10, 5000, 300_000)]
    for message in messages:
        sender.send(message)
    assert exchange(sender, receiver, 3) == messages
    sender.close()
    receiver.close()


def test_both_directions_are_independent(pair: Pair) -> None:
    pair[0].send(b"a" * 300_000)
    pair[1].send(b"b" * 300_000)
    assert exchange(*pair, 1) == [b"a" * 300_000]
    assert exchange(pair[1], pair[0], 1) == [b"b" * 300_000]


@pytest.mark.timeout(30)
def test_a_peer_that_does_not_read_never_blocks_and_is_reported() -> None:
    sender, receiver = make_pair(pending_limit=2_000_000)
    message = os.urandom(100_000)
    sent = 0
    while not sender.full:
        sender.send(message)
        sent += 1
    with pytest.raises(ChannelFullError):
        sender.send(message)
    assert sender.wants_write
    assert 2_000_000 <= sender.pending < 2_100_000
    assert exchange(sender, receiver, sent) == [message] * sent
    assert not sender.full
    assert not sender.wants_write
    sender.close()
    receiver.close()


def test_one_message_over_the_limit_passes_an_idle_channel() -> None:
    sender, receiver = make_pair(pending_limit=1000)
    sender.send(b"x" * 1_000_000)
    assert exchange(sender, receiver, 1) == [b"x" * 1_000_000]
    sender.close()
    receiver.close()


def test_what_was_sent_before_the_end_still_arrives(pair: Pair) -> None:
    pair[0].send(b"last words")
    pair[0].close()
    assert pair[1].receive() == b"last words"
    with pytest.raises(ChannelClosedError):
        pair[1].receive()


def test_an_end_within_a_message_is_an_end(pair: Pair) -> None:
    pair[0].send(b"x" * (4 << 20))  # more than the kernel takes at once
    assert pair[1].receive() is None
    pair[0].close()
    with pytest.raises(ChannelClosedError):
        pair[1].receive()


def test_sending_to_a_closed_peer_is_an_error(pair: Pair) -> None:
    pair[1].close()
    with pytest.raises(ChannelClosedError):
        pair[0].send(b"anybody?")


@pytest.mark.parametrize(
    "datagrams",
    [
        [b"no"],
        [b"GET / HTTP/1.1\r\n\r\n"],
        [b"\x49\x50\x02\x00\x04\x00\x00\x00abcd"],  # does not begin with a first fragment
        [b"\x49\x50\x03\x00\x05\x00\x00\x00abcd"],  # shorter than it says
        [b"\x49\x50\x01\x00\x08\x00\x00\x00abcd", b"\x49\x50\x03\x00\x04\x00\x00\x00abcd"],
        [b"\x49\x50\x01\x00\x08\x00\x00\x00abcd", b"\x49\x50\x02\x00\x08\x00\x00\x00abc"],
    ],
)
def test_what_is_no_packhorse_is_a_protocol_error(datagrams: list[bytes]) -> None:
    stranger, sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = Channel(sock)
    for datagram in datagrams:
        stranger.send(datagram)
    with pytest.raises(ProtocolError):
        channel.receive()
    stranger.close()
    channel.close()


def test_a_killed_process_is_noticed() -> None:
    listening = listener.listen()
    address = listener.address_of(listening)
    script = (
        "import sys, time\n"
        "from packhorse.channel import listener\n"
        "channel = listener.connect(bytes.fromhex(sys.argv[1]))\n"
        "channel.send(b'here')\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, address.hex()]) as process:
        channel = None
        while channel is None:
            channel = listener.accept(listening)
        while (message := channel.receive()) is None:
            time.sleep(0.01)
        assert message == b"here"
        process.send_signal(signal.SIGKILL)
        process.wait()
        with pytest.raises(ChannelClosedError):
            channel.receive()
    channel.close()
    listening.close()


def test_connecting_before_anyone_accepts() -> None:
    listening = listener.listen()
    channel = listener.connect(listener.address_of(listening))
    channel.send(b"early")
    accepted = listener.accept(listening)
    assert accepted is not None
    assert accepted.receive() == b"early"
    assert listener.accept(listening) is None
    for end in (channel, accepted, listening):
        end.close()


def test_nobody_listens() -> None:
    listening = listener.listen()
    address = listener.address_of(listening)
    listening.close()
    with pytest.raises(ConnectionRefusedError):
        listener.connect(address)


def test_strangers_are_not_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    listening = listener.listen()
    address = listener.address_of(listening)
    channel = listener.connect(address)
    monkeypatch.setattr(os, "geteuid", lambda: 123456)
    assert listener.accept(listening) is None
    with pytest.raises(ChannelClosedError):
        channel.receive()
    with pytest.raises(listener.StrangerError, match="refused a connection of user"):
        listener.connect(address)
    channel.close()
    listening.close()
