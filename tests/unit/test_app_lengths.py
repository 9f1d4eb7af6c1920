"""Long, short and blank inputs of POST /predict: what is cut, what is refused, and what is told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from packhorse.tasks import Task
from tests import tiny_checkpoints
from tests.models.test_lengths import LIMITS, folder_of, text_of
from tests.unit.test_app import error_of, lengths_in, rig


@pytest.mark.case(7, 9)
@pytest.mark.parametrize("kind", LIMITS)
def test_the_limit_is_told_kept_and_named(kind: str) -> None:
    limit = LIMITS[kind][-1]

    async def main() -> None:
        async with rig(folder_of(kind)) as r:
            info = (await r.client.get("/info")).json()
            assert info["max_input_length"] == limit
            for tokens in (limit - 1, limit, limit + 1, limit + 2, 2000):
                cut = await r.predict(text_of(tokens), truncate=True)
                assert cut.headers["x-compute-tokens"] == str(min(tokens, limit))
                assert cut.headers["x-truncated"] == str(int(tokens > limit))
                whole = await r.predict(text_of(tokens), truncate=False)
                if tokens <= limit:
                    assert whole.status_code == 200
                else:
                    said = error_of(whole)
                    assert said.startswith("422 Validation")
                    assert str(limit) in said
                assert (await r.predict("fine")).status_code == 200

    asyncio.run(main())


@pytest.mark.case(11)
@pytest.mark.parametrize("text", ["good film " * 7000, "x" * 70_000, "!" * 70_000, "日本" * 35_000])
def test_many_characters_are_no_reason_to_refuse_a_text_that_may_be_cut(text: str) -> None:
    async def main() -> None:
        async with rig() as r:
            answer = await r.predict(text, truncate=True, raw_scores=True)
            assert answer.status_code == 200
            assert answer.headers["x-compute-characters"] == "70000"
            (tokens,) = lengths_in(answer.json())
            assert tokens == (3 if text[0] == "x" else 512)  # a long word is one unknown token

    asyncio.run(main())


@pytest.mark.case(13)
@pytest.mark.parametrize("direction", ["middle", "", "LEFT", 1])
def test_an_unknown_direction_is_not_taken_for_one_that_is_known(direction: Any) -> None:
    async def main() -> None:
        async with rig() as r:
            answer = await r.predict("a", truncation_direction=direction)
            assert error_of(answer).startswith("422 Validation")
            assert "truncation_direction" in answer.text

    asyncio.run(main())


@pytest.mark.case(19)
def test_a_pair_whose_first_text_is_too_long_is_cut_or_refused() -> None:
    async def main() -> None:
        async with rig(folder_of("bert")) as r:
            for first, second in ((602, 7), (602, 3), (502, 502), (3, 602), (262, 502)):
                pair = [text_of(first), text_of(second)]
                answer = await r.predict(pair)
                assert (answer.status_code, answer.headers["x-compute-tokens"]) == (200, "512")
                refused = await r.predict(pair, truncate=False)
                assert error_of(refused).startswith("422 Validation")

    asyncio.run(main())


@pytest.mark.case(1)
@pytest.mark.parametrize("blank", ["", "   ", "\t\n", "\u200b", "\x00"])
def test_a_blank_text_is_two_tokens_and_its_neighbours_are_as_alone(blank: str) -> None:
    async def main() -> None:
        async with rig() as r:
            for inputs in (blank, [[blank]]):
                alone = await r.predict(inputs)
                assert (alone.status_code, alone.headers["x-compute-tokens"]) == (200, "2")
            three = await r.predict([["hello"], [blank], ["world"]], raw_scores=True)
            singles = [(await r.predict(t, raw_scores=True)).json() for t in ("hello", "world")]
            assert [three.json()[0], three.json()[2]] == singles
            pair = await r.predict([blank, blank], raw_scores=True)
            assert lengths_in(pair.json()) == [3]

    asyncio.run(main())


@pytest.mark.case(51)
def test_a_pair_in_a_shape_that_is_not_served_is_refused_and_not_read_as_texts() -> None:
    async def main() -> None:
        async with rig() as r:
            pair = await r.predict([["good film", "bad film"]], raw_scores=True)
            assert lengths_in(pair.json()) == [7]
            both = {"text": "good film", "text_pair": "bad film"}
            assert (await r.predict(both, raw_scores=True)).json() == pair.json()[0]
            assert (await r.predict([both], raw_scores=True)).json() == pair.json()
            for shape in (
                {"text_pair": "bad film"},
                {"text": ["good film", "bad film"]},
                ["good film", both],
                [[["good film", "bad film"]]],
                [["good film", "bad film", "more"]],
            ):
                assert error_of(await r.predict(shape)).startswith("422 Validation")

    asyncio.run(main())


def test_a_window_without_an_answer_is_told_by_its_text() -> None:
    """The fake gives NaN for 9 tokens, which the last window of the long text has."""
    long = " ".join(["good"] * (510 + 7))

    async def main() -> None:
        async with rig() as r:
            several = error_of(await r.predict([["a"], [long], ["a"]], stride=0))
            assert several.startswith("500 Backend: `inputs[1]`: the model gave NaN")
            alone = error_of(await r.predict(long, stride=0))
            assert alone.startswith("500 Backend: the model gave NaN")

    asyncio.run(main())


def test_a_mask_without_an_answer_is_told_by_its_text() -> None:
    """The third sequence is of the second text: the first has two masks."""
    folder = tiny_checkpoints.shared("bert", head="ForMaskedLM", num_labels=None)
    texts = ["[MASK] and [MASK]", "good " * 6 + "[MASK]"]

    async def main() -> None:
        async with rig(folder, Task.FILL_MASK) as r:
            answer = await r.client.post("/v1/fill_mask", json={"inputs": texts})
            assert error_of(answer).startswith("500 Backend: `inputs[1]`: the model gave NaN")

    asyncio.run(main())
