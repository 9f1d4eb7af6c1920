"""The routes in vLLM's shapes and what its requests may say, before an engine that echoes.

Its logits, or its vectors, are a sequence's number of tokens and its last id but one.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import tiny_checkpoints
from tests.models.test_lengths import text_of
from tests.unit.test_app import Rig, rig


def embedder() -> Path:
    return tiny_checkpoints.shared("bert", head="Model", num_labels=None)


def classifier() -> Path:
    return tiny_checkpoints.shared("bert")


def run(check: Callable[[Rig], Any], folder: Path) -> None:
    async def main() -> None:
        async with rig(folder) as r:
            await check(r)

    asyncio.run(main())


RAW = {"use_activation": False}


def test_pooling_of_a_classifier_is_its_scores_or_its_logits() -> None:
    async def check(r: Rig) -> None:
        texts = ["good film", "a"]
        classified = (await r.client.post("/classify", json={"input": texts})).json()
        answer = await r.client.post("/pooling", json={"input": texts, "request_id": "mine"})
        told = answer.json()
        assert told["id"] == "pooling-mine"
        assert told["object"] == "list"
        assert told["usage"] == classified["usage"]
        assert [one["data"] for one in told["data"]] == [one["probs"] for one in classified["data"]]
        assert [(one["index"], one["object"]) for one in told["data"]] == [
            (0, "pooling"),
            (1, "pooling"),
        ]
        for off in (RAW, {"activation": False}, {"task": "classify", **RAW}):
            logits = (await r.client.post("/pooling", json={"input": texts, **off})).json()
            raw = (await r.client.post("/classify", json={"input": texts, **off})).json()
            assert logits["data"][0]["data"] == raw["data"][0]["probs"]
            assert logits["data"][0]["data"][0] == 4
        for task in ("embed", "token_classify", "reward"):
            wrong = await r.client.post("/pooling", json={"input": texts, "task": task})
            assert wrong.status_code == 400
            assert wrong.json()["error"]["type"] == "invalid_request_error"
        sized = await r.client.post("/pooling", json={"input": texts, "dimensions": 1})
        assert sized.status_code == 400

    run(check, classifier())


def test_pooling_cuts_as_it_is_told_and_takes_token_ids() -> None:
    async def check(r: Rig) -> None:
        async def lengths(**said: Any) -> list[int]:
            answer = await r.client.post("/pooling", json=RAW | said)
            assert answer.status_code == 200, answer.text
            return [round(one["data"][0]) for one in answer.json()["data"]]

        texts, ids = [text_of(40), text_of(8), text_of(500)], [list(range(5, 25)), [7, 8]]
        assert await lengths(input=texts) == [40, 8, 128]
        assert await lengths(input=texts, truncate_prompt_tokens=12) == [12, 8, 12]
        assert await lengths(input=ids, truncate_prompt_tokens=6) == [6, 2]
        refused = await r.client.post("/pooling", json={"input": texts, "truncate": False})
        assert refused.status_code == 400

    run(check, classifier())
    run(check, embedder())


def test_pooled_vectors_travel_as_numbers_or_as_base64_of_them() -> None:
    async def check(r: Rig) -> None:
        body = {"input": ["good film", "a"]}
        embedded = (await r.client.post("/v1/embeddings", json=body)).json()["data"]
        wanted = [one["embedding"] for one in embedded]
        plain = (await r.client.post("/pooling", json=body)).json()["data"]
        assert [one["data"] for one in plain] == wanted
        asked = body | {"encoding_format": "base64", "embed_dtype": "float32"}
        packed = (await r.client.post("/pooling", json=asked)).json()["data"]
        got = [np.frombuffer(base64.b64decode(one["data"]), "<f4") for one in packed]
        assert np.abs(np.array(got) - np.array(wanted)).max() < 1e-7
        few = await r.client.post("/pooling", json=body | {"dimensions": 1})
        assert [len(one["data"]) for one in few.json()["data"]] == [1, 1]
        raw = await r.client.post("/pooling", json=body | RAW)
        assert raw.json()["data"][0]["data"][0] == 4
        wrongs = ({"encoding_format": "bytes"}, {"embed_dtype": "float16"}, {"dimensions": 99})
        for wrong in wrongs:
            refused = await r.client.post("/pooling", json=body | wrong)
            assert refused.status_code == 400
            assert next(iter(wrong)) in refused.json()["error"]["message"]

    run(check, embedder())


def test_a_model_that_embeds_scores_pairs_by_cosine() -> None:
    """Vectors are (number of tokens, last word's id): equal texts are equal, "a" is elsewhere."""

    async def check(r: Rig) -> None:
        texts = ["good film", "a", "good film"]
        asked = {"input": ["good film", "a"]}
        told = (await r.client.post("/v1/embeddings", json=asked)).json()["data"]
        one, other = (np.array(row["embedding"]) for row in told)
        wanted = [1.0, float(one @ other), 1.0]
        for path in ("/score", "/v1/score"):
            firsts: tuple[Any, ...] = ("good film", ["good film"], ["good film"] * 3)
            for first in firsts:
                answer = await r.client.post(path, json={"text_1": first, "text_2": texts})
                got = [row["score"] for row in answer.json()["data"]]
                assert got == pytest.approx(wanted, abs=1e-6)
        assert answer.headers["x-compute-tokens"] == str(4 + 4 + 3 + 4)
        pairwise = {"text_1": ["a", "good film"], "text_2": ["a", "a"]}
        answer = await r.client.post("/score", json=pairwise)
        got = [row["score"] for row in answer.json()["data"]]
        assert got == pytest.approx([1.0, wanted[1]], abs=1e-6)
        ranked = {"query": "good film", "documents": ["a", "good film"], "top_n": 1}
        (best,) = (await r.client.post("/v1/rerank", json=ranked)).json()["results"]
        assert best["index"] == 1
        cut = await r.client.post("/v1/rerank", json=ranked | {"max_tokens_per_doc": 3})
        assert cut.status_code == 400
        tei = await r.client.post("/rerank", json={"query": "good film", "texts": ["a"]})
        assert tei.status_code == 424  # as text-embeddings-inference answers

    run(check, embedder())


@pytest.mark.parametrize(
    ("said", "priority"),
    [
        ({}, 0),
        ({"priority": 0}, 0),
        ({"priority": 5}, -5),
        ({"priority": -1}, 1),
        ({"priority": 2**40}, -127),
        ({"priority": -(2**62)}, 127),
    ],
)
def test_a_lower_priority_goes_first(said: dict[str, int], priority: int) -> None:
    seen: list[int] = []

    async def check(r: Rig) -> None:
        really = r.engine.send

        def noting(requests: Sequence[Any], sequences: Any) -> None:
            seen.extend(one.terms.priority for one in requests)
            really(requests, sequences)

        r.engine.send = noting  # type: ignore[method-assign]
        for path, body in (
            ("/classify", {"input": "a"}),
            ("/pooling", {"input": "a"}),
        ):
            assert (await r.client.post(path, json=body | said)).status_code == 200
        headers = {"x-priority": "high"}
        answer = await r.client.post("/classify", json={"input": "a", **said}, headers=headers)
        assert answer.status_code == 200

    run(check, classifier())
    assert seen == [priority, priority, priority or 1]
