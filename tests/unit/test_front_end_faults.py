"""Faults of a front end's own: whoever waits for an answer hears of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from packhorse.channel import codec, listener
from packhorse.channel.board import Board
from packhorse.channel.vitals import Vitals
from packhorse.errors import UnavailableError
from packhorse.launch import SLOT_WORDS
from packhorse.request import Sequences
from packhorse.server import answer_room
from packhorse.server import dispatcher as dispatching
from packhorse.server.engine_client import EngineLink
from packhorse.server.pending import Pending
from tests.unit.test_app import TOKENIZER, EchoEngine, error_of, rig


@pytest.mark.parametrize("small", [answer_room.SMALL, 0])  # 0: each waits for room
@pytest.mark.parametrize("broken", [(EchoEngine, "send"), (dispatching.Dispatcher, "_note")])
def test_what_fails_after_tokenising_is_answered_and_not_logged_with_the_text(
    small: int,
    broken: tuple[type, str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*arguments: Any) -> None:
        raise KeyError("secret text")

    monkeypatch.setattr(dispatching, "SMALL", small)
    monkeypatch.setattr(*broken, fail)

    async def main() -> None:
        async with rig() as r:
            few, many = r.predict("secret text"), r.predict("secret text " * 3000)
            for answer in await asyncio.wait_for(asyncio.gather(few, many), 30):
                assert error_of(answer).startswith("500 Backend")

    asyncio.run(main())
    assert caplog.text.count("KeyError") == 2
    assert "secret" not in caplog.text


def test_an_answer_that_cannot_be_read_ends_the_wait_for_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(message: bytes) -> None:
        raise IndexError("secret")

    monkeypatch.setattr(codec, "decode_completions", fail)

    async def main() -> None:
        accepting = listener.listen()
        board = Board.create(2, SLOT_WORDS)
        vitals = Vitals(board, 1)
        vitals.beat(asyncio.get_running_loop().time(), 0.0, 1e9)
        link = EngineLink(listener.address_of(accepting), vitals)
        link.connect()
        engine = listener.accept(accepting)
        assert engine is not None
        engine.send(codec.encode_info({}, 1))
        while link.fault is not None:
            await asyncio.sleep(0.01)
        sequences: Sequences = TOKENIZER.encode(["a text"])
        pending = Pending(["a text"], 6, True, "right", 4, asyncio.Future())
        link.send([pending], sequences)
        engine.send(bytes([codec.Kind.COMPLETIONS]) + bytes(23))
        with pytest.raises(UnavailableError):
            await asyncio.wait_for(pending.future, 30)
        assert link.in_flight == link.tokens == 0
        link.close()
        engine.close()
        accepting.close()

    asyncio.run(main())
    assert "IndexError" in caplog.text
    assert "secret" not in caplog.text


def test_who_was_answered_by_an_engine_before_cancels_nothing_of_the_next_ones() -> None:
    """A request whose follower hangs up is abandoned, though it may long be answered."""

    async def main() -> None:
        accepting, vitals = listener.listen(), Vitals(Board.create(2, SLOT_WORDS), 1)
        vitals.beat(asyncio.get_running_loop().time(), 0.0, 1e9)
        link = EngineLink(listener.address_of(accepting), vitals)
        link.connect()
        sequences: Sequences = TOKENIZER.encode(["a text"])
        requests: list[Pending] = []
        for _ in range(2):
            while (engine := listener.accept(accepting)) is None:
                await asyncio.sleep(0.01)
            engine.send(codec.encode_info({}, 1))
            while link.fault is not None:
                await asyncio.sleep(0.01)
            requests.append(Pending(["a text"], 6, True, "right", 4, asyncio.Future()))
            link.send(requests[-1:], sequences)
            await asyncio.sleep(0.01)
            asked = engine.receive()
            assert asked is not None
            if len(requests) == 1:
                engine.close()
                with pytest.raises(UnavailableError):
                    await requests[0].future
        earlier, later = requests
        assert earlier.ticket != later.ticket
        assert earlier.on_abandon is not None
        earlier.on_abandon(earlier)
        await asyncio.sleep(0.01)
        assert link.in_flight == 1
        assert engine.receive() is None
        link.close()
        with pytest.raises(UnavailableError):
            await later.future
        engine.close()
        accepting.close()

    asyncio.run(main())
