"""Connections over real sockets: who stalls is cut off, who hangs up is noticed."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from packhorse.metrics import ACCEPTING
from packhorse.server.app import App
from packhorse.server.connection import sweep
from packhorse.server.http_server import Server, uvicorn_config
from packhorse.server.listen import bind
from tests.unit.test_app import Rig, rig

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]

BODY = b'{"inputs":"good film","raw_scores":true}'
HEAD = b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(BODY)


class Site:
    """A server in this process, and its clients."""

    def __init__(self, r: Rig, server: Server, port: int) -> None:
        self.rig = r
        self.server = server
        self._port = port

    async def connect(self) -> Ends:
        return await asyncio.open_connection("127.0.0.1", self._port)

    async def left_alone(self, seconds: float = 10) -> None:
        """Until it has no connections and works on nothing; fails if that takes too long."""
        state, end = self.server.server_state, time.monotonic() + seconds
        while state.connections or state.tasks:
            assert time.monotonic() < end, "something is left"
            await asyncio.sleep(0.01)

    def sweep(self) -> int:
        return sweep(self.server.server_state.connections)


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    async with rig() as r:
        server = Server(uvicorn_config(App(r.service), 25), r.board, 1)
        listening = bind("127.0.0.1", 0)
        listening.listen()
        serving = asyncio.create_task(server.serve([listening]))
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            yield Site(r, server, listening.getsockname()[1])
        finally:
            server.should_exit = True
            await asyncio.wait_for(serving, 10)


async def answer_from(reader: asyncio.StreamReader) -> bytes:
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
    (length,) = (
        int(line.split(b": ")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-len")
    )
    return head + await reader.readexactly(length)


async def is_cut(reader: asyncio.StreamReader, seconds: float = 10) -> bool:
    """Whether it is, at the latest in so many seconds."""
    try:
        return await asyncio.wait_for(reader.read(1), seconds) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


@pytest.mark.case(83)
def test_who_keeps_us_waiting_is_cut_off_and_others_are_not() -> None:
    async def main() -> None:
        async with site() as s:
            s.rig.engine.seconds = 1.5
            silent = await s.connect()
            in_headers = await s.connect()
            in_headers[1].write(HEAD[:20])
            in_body = await s.connect()
            in_body[1].write(HEAD + BODY[:5])
            slow = await s.connect()
            slow[1].write(HEAD + BODY[:5])
            waiting = await s.connect()
            waiting[1].write(HEAD + BODY)
            idle = await s.connect()
            idle[1].write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            await answer_from(idle[0])
            while len(s.server.server_state.connections) < 6:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert s.sweep() == 0
            slow[1].write(BODY[5:10])
            in_headers[1].write(HEAD[20:30])  # headers have to be complete in time
            await asyncio.sleep(0.1)
            assert s.sweep() == 3
            for cut in (silent, in_headers, in_body):
                assert await is_cut(cut[0])
            for kept in (slow, waiting, idle):
                assert not await is_cut(kept[0], 0.2)
            slow[1].write(BODY[10:])
            for client in (slow, waiting):
                assert b" 200 OK" in await answer_from(client[0])
            idle[1].write(HEAD + BODY)
            assert b" 200 OK" in await answer_from(idle[0])
            for _, writer in (silent, in_headers, in_body, slow, waiting, idle):
                writer.close()

    asyncio.run(main())


UPGRADE = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAA\r\n"
"""What Java's HTTP client sends with every request in the clear."""


@pytest.mark.case(109)
@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_is_read_though_another_protocol_is_offered(
    in_pieces: bool, is_chunked: bool
) -> None:
    async def main() -> None:
        async with site() as s:
            reader, writer = await s.connect()
            head, body = HEAD, BODY
            if is_chunked:
                head = b"POST /predict HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
                body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
            offer = head[:-2] + UPGRADE + b"\r\n" + body
            other = b"GET /health HTTP/1.1\r\nhost: x\r\n" + UPGRADE + b"\r\n"
            sent = offer + other + HEAD + BODY + offer
            for piece in [sent[i : i + 7] for i in range(0, len(sent), 7)] if in_pieces else [sent]:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            answers = [await answer_from(reader) for _ in range(4)]
            assert all(b" 200 OK" in answer for answer in answers)
            scores = [answer.partition(b"\r\n\r\n")[2] for answer in answers]
            assert scores[0] == scores[2] == scores[3] != scores[1] == b""
            writer.close()

    asyncio.run(main())


def test_a_tunnel_is_no_request() -> None:
    async def main() -> None:
        async with site() as s:
            reader, writer = await s.connect()
            writer.write(b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n" + UPGRADE + b"\r\nabc")
            assert b" 4" in (await answer_from(reader))[:12]
            writer.close()

    asyncio.run(main())


@pytest.mark.parametrize("sent", [HEAD[:20], HEAD, HEAD + BODY[:7], HEAD + BODY])
@pytest.mark.case(83)
def test_who_hangs_up_at_any_point_leaves_nothing(sent: bytes) -> None:
    async def main() -> None:
        async with site() as s:  # which checks that nothing is in flight at the end
            s.rig.engine.seconds = 60
            _, writer = await s.connect()
            writer.write(sent)
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.close()
            await s.left_alone()

    asyncio.run(main())


def test_who_asked_and_hung_up_in_one_breath_costs_the_engine_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with site() as s:
            client = socket.create_connection(("127.0.0.1", s._port))
            client.sendall(HEAD + BODY)
            client.close()
            await asyncio.sleep(0.1)
            await s.left_alone()
            assert s.rig.engine.sent == []

    asyncio.run(main())
    assert "ASGI" not in caplog.text


def test_answers_written_at_once_are_as_asgi_would_write_them() -> None:
    async def main() -> None:
        async with site() as s:
            reader, writer = await s.connect()
            writer.write(HEAD + BODY)
            quick = await answer_from(reader)
            writer.write(HEAD.replace(b"host: x", b"host: x\r\nconnection: close") + BODY)
            last = await answer_from(reader)
            assert await is_cut(reader)
            writer.close()
            through_asgi = await s.rig.client.post("/predict", content=BODY)
            lines = [
                line.split(b": ")[0].decode() for line in quick.split(b"\r\n\r\n")[0].split(b"\r\n")
            ]
            assert lines[0] == "HTTP/1.1 200 OK"
            assert set(lines[1:]) == {*through_asgi.headers, "date"}
            assert json.loads(quick.split(b"\r\n\r\n")[1]) == through_asgi.json()
            assert b"connection: close\r\n" in last

    asyncio.run(main())


def test_the_end_waits_for_answers_and_closes_idle_connections() -> None:
    async def main() -> None:
        async with site() as s:
            s.rig.engine.holds = True
            idle, busy = await s.connect(), await s.connect()
            busy[1].write(HEAD + BODY)
            while not s.rig.engine.held:
                await asyncio.sleep(0.001)
            s.server.should_exit = True
            await asyncio.sleep(0.2)  # it has begun to end
            s.rig.engine.release()
            assert b" 200 OK" in await answer_from(busy[0])
            for reader, writer in (idle, busy):
                assert await is_cut(reader)
                writer.close()
            assert s.rig.board.total(ACCEPTING.first) == 0

    asyncio.run(main())
