"""Large answers: refused above the limit, and waiting for each other below it."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packhorse.checkpoint import load_checkpoint
from packhorse.metrics import INPUTS_IN_FLIGHT
from packhorse.request import Sequences, bounds_of
from packhorse.server import dispatcher as dispatching
from packhorse.server.answer_room import AnswerRoom, AnswerSizes
from packhorse.server.pending import Pending
from packhorse.tokenizing.tokenizer import Tokenizer
from tests import tiny_checkpoints
from tests.unit.test_app import Rig, error_of, rig

TOKEN = 100


def pending_of(count: int = 1, tokens: int = 1) -> Pending:
    future = asyncio.get_running_loop().create_future()
    return Pending(["x"] * count, 1, True, "right", tokens, future)


def sequences_of(*lengths: int, whole: bool = True) -> Sequences:
    bounds = bounds_of(np.array(lengths, np.int32))
    flags = np.ones(len(lengths), np.bool_)
    return Sequences(
        np.zeros(bounds[-1], np.int32), bounds, ~flags, token_level=flags if whole else None
    )


class Entered:
    """Requests of so many tokens in a room of 1000 bytes: which of them have gone."""

    def __init__(self) -> None:
        self.room = AnswerRoom(AnswerSizes(8, TOKEN, False, 10 * TOKEN))
        self.gone: list[int] = []

    def enter(self, tokens: int) -> Pending:
        pending = pending_of(tokens=tokens)
        go = lambda: self.gone.append(tokens)  # noqa: E731
        self.room.enter([pending], sequences_of(tokens), go)
        return pending


def test_answers_wait_in_order_until_those_before_leave_room() -> None:
    async def main() -> None:
        entered = Entered()
        first, second, third, fourth = map(entered.enter, (6, 5, 4, 1))
        assert entered.gone == [6]  # the last would fit, but it is not its turn
        entered.room.leave(first)
        assert entered.gone == [6, 5, 4, 1]
        for pending in (second, third, fourth, fourth):  # leaving twice is leaving once
            entered.room.leave(pending)
        assert entered.room.taken == 0

    asyncio.run(main())


def test_the_largest_answer_waits_only_until_the_room_is_empty() -> None:
    async def main() -> None:
        entered = Entered()
        first = entered.enter(1)
        huge = entered.enter(25)
        entered.room.leave(first)
        assert entered.gone == [1, 25]
        entered.room.leave(huge)
        assert entered.room.taken == 0

    asyncio.run(main())


def test_who_gives_up_in_the_queue_is_passed_over_unless_another_follows() -> None:
    async def main() -> None:
        entered = Entered()
        first = entered.enter(9)
        alone, led, last = map(entered.enter, (7, 3, 2))
        follower = pending_of()
        led.lead(0, follower, 0)
        for pending in (alone, led):
            pending.abandon(RuntimeError("gone"))
            entered.room.leave(pending)
        entered.room.leave(first)
        assert entered.gone == [9, 3, 2]
        assert entered.room.taken == 2 * TOKEN  # nobody would give back the follower's
        entered.room.leave(last)
        assert entered.room.taken == 0
        for pending in (alone, led):
            assert pending.future.exception() is not None

    asyncio.run(main())


@pytest.mark.parametrize(
    ("head", "labels", "whole", "expected"),
    [
        ("Model", None, False, 2 * 4 * 32),
        ("Model", None, True, 7 * 4 * 32),
        ("ForSequenceClassification", 3, False, 2 * 4 * 3),
        ("ForTokenClassification", 5, False, 7 * 4 * 5),
    ],
)
def test_sizes_are_those_of_the_models_answers(
    head: str, labels: int | None, whole: bool, expected: int
) -> None:
    checkpoint = load_checkpoint(tiny_checkpoints.shared("bert", head=head, num_labels=labels))
    sizes = AnswerSizes.of_model(checkpoint, 1000)
    assert sizes.of_all(sequences_of(3, 4, whole=whole)) == expected


def embedder() -> Path:
    return tiny_checkpoints.shared("bert", head="Model", num_labels=None)


async def embed(r: Rig, texts: int, **headers: str) -> Any:
    return await r.client.post("/embed", json={"inputs": ["a"] * texts}, headers=headers)


def test_what_is_on_its_way_never_passes_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatching, "SMALL", 0)

    async def main() -> None:
        async with rig(embedder(), answer_limit=8 * 128) as r:
            room = r.service.dispatcher._room
            r.engine.seconds = 0.02
            taken = []
            send = r.engine.send

            def spying(requests: Any, sequences: Any) -> None:
                taken.append(room.taken)
                send(requests, sequences)

            r.engine.send = spying  # type: ignore[method-assign]
            asked = []
            for texts in (5, 3, 8, 1, 6, 2, 7):
                asked.append(asyncio.create_task(embed(r, texts)))
                await asyncio.sleep(0.001)  # a turn each
            given_up = await embed(r, 8, **{"x-timeout-ms": "5"})
            assert given_up.status_code == 504
            for answer in await asyncio.gather(*asked):
                assert answer.status_code == 200
            assert len(taken) == 7  # the one that gave up never got to the engine
            assert max(taken) == 8 * 128
            too_large = await embed(r, 9)
            assert error_of(too_large).startswith("422 Validation: the answer to 9 inputs has 9 ro")
            assert "--answer-limit" in error_of(too_large)
            assert (await embed(r, 8)).status_code == 200

    asyncio.run(main())


def test_only_the_request_that_asks_for_too_much_fails_in_its_turn() -> None:
    async def main() -> None:
        async with rig(embedder(), answer_limit=4 * 128) as r:
            answers = await asyncio.gather(*[embed(r, texts) for texts in (4, 5, 1)])
            assert [answer.status_code for answer in answers] == [200, 422, 200]

    asyncio.run(main())


def test_listing_tokens_is_admitted_as_computing_is(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    pieces = Tokenizer.pieces

    def slow(self: Tokenizer, text: str) -> Any:
        assert gate.wait(20)
        return pieces(self, text)

    monkeypatch.setattr(Tokenizer, "pieces", slow)

    async def main() -> None:
        settings = {"max_client_batch_size": 3, "max_concurrent_requests": 4, "answer_limit": 100}
        async with rig(**settings) as r:

            async def ask(path: str, body: Any, **headers: str) -> Any:
                return await r.client.post(path, json=body, headers=headers)

            four = {"/tokenize": {"inputs": ["a"] * 4}, "/decode": {"ids": [[7]] * 4}}
            for path, body in four.items():
                assert "at most 3 are allowed" in error_of(await ask(path, body))
            held = asyncio.create_task(ask("/tokenize", {"inputs": ["a"] * 3}))
            while not r.board.total(INPUTS_IN_FLIGHT.first):
                await asyncio.sleep(0.001)
            assert r.board.total(INPUTS_IN_FLIGHT.first) == 3
            two = {"/tokenize": {"inputs": ["a"] * 2}, "/decode": {"ids": [[7]] * 2}}
            for path, body in two.items():
                refused = await ask(path, body)
                assert error_of(refused).startswith("429 Overloaded: 3 inputs wait or run already")
                assert refused.headers["retry-after"] == "1"
            late = await ask("/tokenize", {"inputs": "a"}, **{"x-timeout-ms": "20"})
            assert late.status_code == 504
            assert (await r.predict("a")).status_code == 200  # tokenised by another thread
            gate.set()
            assert (await held).status_code == 422  # three of 57 bytes
            assert "--answer-limit" in (await held).text
            fine = await ask("/tokenize", {"inputs": "a"})
            assert [one["special"] for one in json.loads(fine.content)[0]] == [True, False, True]

    asyncio.run(main())
