"""How much of a text is read, where clients say it in the words of several servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import transformers

from packhorse.checkpoint import load_checkpoint
from packhorse.errors import ValidationError
from packhorse.request import Sequences
from packhorse.server.pending import Pending
from packhorse.tokenizing.tokenizer import Direction, Tokenizer
from tests import tiny_checkpoints
from tests.unit.test_app import Rig, rig

EMBEDS: dict[str, Any] = {"head": "Model", "num_labels": None}
LONG = " ".join(tiny_checkpoints.WORDS[:200])
PAIRS = [("a good film", LONG), (LONG, "bad"), (LONG, LONG), ("day", "night"), ("", LONG)]


def run(check: Callable[[Rig, list[list[int]]], Any], **options: Any) -> None:
    """``check`` with a tiny BERT of these options, and with the ids that reach the engine."""

    async def main() -> None:
        async with rig(tiny_checkpoints.shared("bert", **options)) as r:
            ids: list[list[int]] = []
            send = r.engine.send

            def noted(requests: Sequence[Pending], sequences: Sequences) -> None:
                ids.extend(
                    sequences.slice(i, i + 1).input_ids.tolist() for i in range(len(sequences))
                )
                send(requests, sequences)

            r.engine.send = noted  # type: ignore[method-assign]
            await check(r, ids)

    asyncio.run(main())


def reference(**options: Any) -> Any:
    return transformers.AutoTokenizer.from_pretrained(tiny_checkpoints.shared("bert", **options))


@pytest.mark.case(13, 19)
@pytest.mark.parametrize("direction", ["right", "left"])
@pytest.mark.parametrize("most", [4, 7, 8, 60, 128])
def test_a_limit_of_a_request_cuts_as_the_reference(direction: Direction, most: int) -> None:
    folder = tiny_checkpoints.shared("bert")
    tokenizer = Tokenizer.load(load_checkpoint(folder), parallel=False)
    known = transformers.AutoTokenizer.from_pretrained(folder, truncation_side=direction)
    for inputs in ([LONG, "a good film", ""], PAIRS):
        found = tokenizer.encode(inputs, direction=direction, most=most)
        for i, one in enumerate(inputs):
            texts = (one,) if isinstance(one, str) else one
            expected = known(*texts, truncation=True, max_length=most)
            sequence = found.slice(i, i + 1)
            assert sequence.input_ids.tolist() == expected["input_ids"]
            assert bool(sequence.truncated[0]) == (len(known(*texts)["input_ids"]) > most)


def test_a_second_text_is_cut_before_the_pair_is() -> None:
    folder = tiny_checkpoints.shared("bert")
    tokenizer = Tokenizer.load(load_checkpoint(folder), parallel=False)
    found = tokenizer.encode(PAIRS, most_of_second=3)
    for i, (first, second) in enumerate(PAIRS):
        short = " ".join(second.split()[:3])
        expected = tokenizer.encode([(first, short)])
        assert found.slice(i, i + 1).input_ids.tolist() == expected.input_ids.tolist()
        assert found.truncated[i] == (expected.truncated[0] or short != second)
    assert found.segment_starts is not None
    with pytest.raises(ValidationError, match=r"inputs\[1\] has .*the limit is 128"):
        tokenizer.encode([PAIRS[0], PAIRS[1]], truncate=False, most_of_second=3)


def test_ids_are_cut_at_the_end_that_is_asked_for() -> None:
    tokenizer = Tokenizer.load(load_checkpoint(tiny_checkpoints.shared("bert")), parallel=False)
    ids = list(range(5, 205))
    assert tokenizer.from_ids([ids]).input_ids.tolist() == ids[:128]
    assert tokenizer.from_ids([ids], direction="left").input_ids.tolist() == ids[-128:]
    assert tokenizer.from_ids([ids], direction="left", most=2).input_ids.tolist() == ids[-2:]


@pytest.mark.case(11, 13)
@pytest.mark.parametrize(
    ("path", "body", "options"),
    [
        ("/v1/embeddings", {"input": [LONG, "a"]}, EMBEDS),
        ("/classify", {"input": [LONG, "a"]}, {}),
        ("/score", {"text_1": "day", "text_2": [LONG, "a"]}, {"num_labels": 1}),
        ("/v1/rerank", {"query": "day", "documents": [LONG, "a"]}, {"num_labels": 1}),
    ],
)
def test_the_words_of_vllm_hold(path: str, body: Any, options: dict[str, Any]) -> None:
    texts = [("day", LONG), ("day", "a")] if options == {"num_labels": 1} else [(LONG,), ("a",)]

    async def check(r: Rig, ids: list[list[int]]) -> None:
        known = reference(**options)
        for words, most, side in (
            ({"truncate_prompt_tokens": 10}, 10, "right"),
            ({"truncate_prompt_tokens": 10, "truncation_side": "left"}, 10, "left"),
            ({"truncate_prompt_tokens": -1, "truncate": False}, 128, "right"),
            ({"truncation_direction": "Left"}, 128, "left"),
        ):
            known.truncation_side = side
            ids.clear()
            answer = await r.client.post(path, json=body | words)
            assert answer.status_code == 200, answer.text
            assert ids == [
                known(*text, truncation=True, max_length=most)["input_ids"] for text in texts
            ]
            assert answer.json()["usage"]["prompt_tokens"] == sum(map(len, ids))
        for words in (
            {"truncate": False},
            {"truncate_prompt_tokens": 129},
            {"truncate_prompt_tokens": 0},
            {"truncate_prompt_tokens": 2},
            {"truncation_side": "middle"},
        ):
            answer = await r.client.post(path, json=body | words)
            assert answer.status_code == 400, (words, answer.text)
            assert "message" in answer.json()["error"]

    run(check, **options)


@pytest.mark.case(9)
def test_token_ids_are_cut_by_the_same_words() -> None:
    async def check(r: Rig, ids: list[list[int]]) -> None:
        sent = list(range(5, 205))
        for words, kept in (
            ({"truncate_prompt_tokens": 3}, sent[:3]),
            ({"truncate_prompt_tokens": 3, "truncation_side": "left"}, sent[-3:]),
            ({"truncation_direction": "left"}, sent[-128:]),
        ):
            ids.clear()
            answer = await r.client.post("/v1/embeddings", json={"input": sent} | words)
            assert answer.status_code == 200, answer.text
            assert ids == [kept]
        ids.clear()
        left = {"inputs": [sent], "truncation_direction": "left"}
        assert (await r.client.post("/embed", json=left)).status_code == 200
        assert ids == [sent[-128:]]
        refused = await r.client.post("/v1/embeddings", json={"input": sent, "truncate": False})
        assert refused.status_code == 400

    run(check, **EMBEDS)


@pytest.mark.case(17, 113)
def test_of_each_document_as_many_tokens_are_read_as_cohere_is_told() -> None:
    async def check(r: Rig, ids: list[list[int]]) -> None:
        known = reference(num_labels=1)
        short = " ".join(LONG.split()[:6])
        asked = {"query": "day", "documents": [LONG, "a"], "max_tokens_per_doc": 6}
        answer = await r.client.post("/v2/rerank", json=asked)
        assert answer.status_code == 200, answer.text
        assert ids == [known("day", text)["input_ids"] for text in (short, "a")]
        assert answer.json()["usage"]["prompt_tokens"] == sum(map(len, ids))
        assert answer.headers["x-truncated"] == "1"
        named = await r.client.post("/v1/rerank", json=asked | {"rank_fields": ["text"]})
        assert named.status_code == 200
        for wrong in ({"max_tokens_per_doc": 0}, {"rank_fields": ["title"]}):
            assert (await r.client.post("/v2/rerank", json=asked | wrong)).status_code == 400

    run(check, num_labels=1)


@pytest.mark.case(59, 105)
def test_what_would_change_a_vector_is_read_or_refused_at_openais_route() -> None:
    async def check(r: Rig, ids: list[list[int]]) -> None:
        async def vector(**words: Any) -> Any:
            answer = await r.client.post("/v1/embeddings", json={"input": "a"} | words)
            return answer.json()["data"][0]["embedding"] if answer.is_success else answer

        usual = await vector()
        raw = await vector(normalize=False)
        assert raw != usual
        assert await vector(use_activation=False) == raw
        same = {"embed_dtype": "float32", "endianness": "little", "add_special_tokens": True}
        assert await vector(**same) == usual
        for wrong in (
            {"embed_dtype": "float16"},
            {"endianness": "big"},
            {"add_special_tokens": False},
            {"prompt_name": "none such"},
            {"stride": 2, "truncate_prompt_tokens": 10},
        ):
            refused = await vector(**wrong)
            assert refused.status_code == 400, wrong
            assert next(iter(wrong)) in refused.text or "prompt" in refused.text

    run(check, **EMBEDS)
