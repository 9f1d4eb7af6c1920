"""Clients that send endless headers, and clients that read nothing."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

from packhorse.server.connection import HEADER_LIMIT
from tests.unit.test_connection import Site, answer_from, is_cut, site

LINE = b"GET /health HTTP/1.1\r\nhost: x\r\n"
LARGE = json.dumps({"inputs": [["a"]] * 16_000}).encode()


def headers(size: int) -> bytes:
    """Whole header lines of so many bytes."""
    return b"x-header: abcdefghijklmnopqr\r\n" * (size // 30)


@pytest.mark.parametrize(
    ("first", "rest"),
    [
        (LINE + headers(60_000), headers(9_000)),
        (LINE + headers(60_000), headers(9_000) + b"\r\n"),
        (LINE + b"x: " + b"y" * 60_000, b"y" * 9_000),
        (b"GET /" + b"y" * 60_000, b"y" * 9_000 + b" HTTP/1.1\r\n"),
    ],
)
def test_headers_over_the_limit_are_refused_before_they_end(first: bytes, rest: bytes) -> None:
    async def main() -> None:
        async with site() as s:
            reader, writer = await s.connect()
            writer.write(first)
            await asyncio.sleep(0.1)  # all of it is read: else the end would be a reset
            writer.write(rest)
            answer = await answer_from(reader)
            assert answer.startswith(b"HTTP/1.1 431 ")
            assert set(json.loads(answer.partition(b"\r\n\r\n")[2])) == {"error", "error_type"}
            assert await is_cut(reader)
            writer.close()

    asyncio.run(main())


def test_headers_up_to_the_limit_are_read_of_every_request() -> None:
    async def main() -> None:
        async with site() as s:
            reader, writer = await s.connect()
            for _ in range(3):
                writer.write(LINE + headers(HEADER_LIMIT // 2))
                await asyncio.sleep(0.05)
                writer.write(headers(HEADER_LIMIT // 2 - 100) + b"\r\n")
                assert b" 200 OK" in await answer_from(reader)
            writer.close()

    asyncio.run(main())


async def unread(s: Site, sock: socket.socket) -> int:
    """Ask for more than the system buffers, and read nothing until some of it waits.

    Returns how often it was asked.
    """
    head = b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(LARGE)
    (connection,) = s.server.server_state.connections
    for number in range(40):
        await asyncio.get_running_loop().sock_sendall(sock, head + LARGE)
        await asyncio.sleep(0.1)
        if connection.transport.get_write_buffer_size():
            await asyncio.sleep(0.1)
            return number + 1
    raise AssertionError("the system buffers everything")


async def client_of(s: Site) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", s._port))
    await asyncio.sleep(0.05)
    return sock


def test_who_reads_nothing_of_an_answer_is_cut_off() -> None:
    async def main() -> None:
        async with site() as s:
            with await client_of(s) as sock:
                await unread(s, sock)
                assert s.sweep() == 0
                assert s.sweep() == 1
                await s.left_alone()

    asyncio.run(main())


def loop_factories() -> list[Any]:
    """The server's own loop first, where there is one."""
    try:
        import uvloop
    except ImportError:
        return [asyncio.new_event_loop]
    return [uvloop.new_event_loop, asyncio.new_event_loop]


@pytest.mark.parametrize("loop_factory", loop_factories())
def test_answers_that_the_system_does_not_take_at_once_arrive_whole_and_in_order(
    loop_factory: Any,
) -> None:
    """Of routes that write an answer in one piece, and of others that write as ASGI does."""
    small = b'{"inputs":"good film"}'
    post = b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
    asked = [
        *(post % len(LARGE) + LARGE, post % len(small) + small),
        *(b"GET /info HTTP/1.1\r\nhost: x\r\n\r\n", post % len(small) + small),
    ]

    async def main() -> None:
        async with site() as s:
            with await client_of(s) as sock:
                count = await unread(s, sock)
                sending = asyncio.get_running_loop().sock_sendall(sock, b"".join(asked))
                bodies, _ = await asyncio.gather(bodies_from(sock, count + len(asked)), sending)
                whole, (large, one, info, last) = bodies[:count], bodies[count:]
                assert all(body == large for body in whole)
                assert len(large) > 1000
                assert one == last
                assert one[0]["label"]
                assert "model_id" in info
            await s.left_alone()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


async def bodies_from(sock: socket.socket, count: int) -> list[Any]:
    """Of the next answers, read piece by piece."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()

    async def feed() -> None:
        while True:
            reader.feed_data(await loop.sock_recv(sock, 65_536))

    feeding = asyncio.create_task(feed())
    answers = [await answer_from(reader) for _ in range(count)]
    feeding.cancel()
    await asyncio.wait([feeding])
    return [json.loads(answer.partition(b"\r\n\r\n")[2]) for answer in answers]


def test_who_reads_slowly_is_not() -> None:
    async def main() -> None:
        async with site() as s:
            with await client_of(s) as sock:
                await unread(s, sock)
                for _ in range(3):
                    assert s.sweep() == 0
                    (connection,) = s.server.server_state.connections
                    before = connection.transport.get_write_buffer_size()
                    while before and connection.transport.get_write_buffer_size() == before:
                        await asyncio.get_running_loop().sock_recv(sock, 65_536)

    asyncio.run(main())
