"""``POST /tokenize`` of a long text: a few thousand tokens at a time, whatever the tokenizer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from packhorse.server.routes import tokenize
from packhorse.tokenizing.safe_cuts import Piece
from packhorse.tokenizing.tokenizer import Tokenizer
from tests.unit.test_app import Rig, rig

TEXT = "A good film, they say! " * 100


def read_whole(self: Tokenizer, text: str) -> Iterator[Piece]:
    """As where no place is known to be safe to cut at."""
    yield Piece(0, 0, len(text))


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens were made and written, each time."""
    encode, counts = tokenize.encode_json, []

    def counting(value: Any) -> bytes:
        if isinstance(value, list):
            counts.append(len(value))
        return encode(value)

    monkeypatch.setattr(tokenize, "encode_json", counting)
    monkeypatch.setattr(tokenize, "LISTED_TOKENS", 30)
    monkeypatch.setattr(Tokenizer, "pieces", read_whole)
    return counts


async def listed(r: Rig) -> Any:
    return await r.client.post("/tokenize", json={"inputs": TEXT})


def test_tokens_of_a_text_that_cannot_be_cut_are_written_some_at_a_time(written: list[int]) -> None:
    async def main() -> None:
        async with rig() as r:
            (tokens,) = (await listed(r)).json()
            library = r.service.tokenizer.library
        expected = library.encode(TEXT)
        assert [one["id"] for one in tokens] == expected.ids
        own = tokens[1:-1]
        assert [(one["start"], one["stop"]) for one in own] == expected.offsets[1:-1]
        assert [one["text"] for one in own] == [TEXT[a:b] for a, b in expected.offsets[1:-1]]
        assert sum(written) == len(own) == 700
        assert max(written) == 30

    asyncio.run(main())


def test_no_more_of_them_are_made_than_the_answer_may_hold(written: list[int]) -> None:
    async def main() -> None:
        async with rig(answer_limit=5000) as r:
            answer = await listed(r)
        assert answer.status_code == 422
        assert "5000 bytes (--answer-limit)" in answer.text
        assert 60 <= sum(written) <= 150  # of 700, each of some sixty bytes

    asyncio.run(main())
