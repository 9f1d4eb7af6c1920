"""The routes for embeddings as clients of OpenAI and text-embeddings-inference send their requests.

The vectors are those of a fake engine: a text's number of tokens and its last id.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import tiny_checkpoints
from tests.models.test_lengths import text_of
from tests.unit.test_app import Rig, rig

LIMIT = 128
PATHS = ("/v1/embeddings", "/v1/embeddings/", "/embeddings", "/embeddings/")


def folder() -> Path:
    return tiny_checkpoints.shared("bert", head="Model", num_labels=None)


def run(check: Callable[[Rig], Any]) -> None:
    async def main() -> None:
        async with rig(folder()) as r:
            await check(r)

    asyncio.run(main())


@pytest.mark.case(105)
def test_base64_is_little_endian_float32_of_the_same_numbers() -> None:
    async def check(r: Rig) -> None:
        plain = {"input": ["good film", "a", ""], "model": "m"}
        answers = {}
        for name in (None, "float", "base64"):
            given = plain if name is None else plain | {"encoding_format": name}
            data = (await r.client.post("/v1/embeddings", json=given)).json()["data"]
            answers[name] = [one["embedding"] for one in data]
        assert answers[None] == answers["float"]
        for numbers, text in zip(answers["float"], answers["base64"], strict=True):
            packed = base64.b64decode(text, validate=True)
            assert len(packed) == 4 * len(numbers)
            assert np.abs(np.frombuffer(packed, "<f4") - np.array(numbers)).max() < 1e-7
        for wrong in ("hex", "BASE64", "", 1):
            answer = await r.client.post("/v1/embeddings", json=plain | {"encoding_format": wrong})
            assert answer.status_code == 400
            assert "encoding_format" in answer.json()["error"]["message"]

    run(check)


@pytest.mark.case(107)
def test_a_plain_string_is_embedded_on_every_path_that_clients_use() -> None:
    async def check(r: Rig) -> None:
        for path in PATHS:
            for model in ({}, {"model": "anything"}, {"model": "text-embedding-3-small"}):
                answer = await r.client.post(path, json={"input": "a", **model})
                assert answer.status_code == 200
                assert len(answer.json()["data"]) == 1

    run(check)


@pytest.mark.case(61)
def test_no_size_is_all_and_one_that_the_model_has_not_is_refused_by_name() -> None:
    """Its own size is asked for in tests/models and tests/e2e, of vectors that have it."""

    async def check(r: Rig) -> None:
        for path, key in (("/v1/embeddings", "input"), ("/embed", "inputs")):
            plain = await r.client.post(path, json={key: "good film"})
            same = await r.client.post(path, json={key: "good film", "dimensions": None})
            assert (same.status_code, same.content) == (200, plain.content)
            for size in (33, 0, -1, "32", 1.5):
                wrong = await r.client.post(path, json={key: "good film", "dimensions": size})
                assert wrong.status_code in (400, 422)
                assert "dimensions" in wrong.text

    run(check)


@pytest.mark.case(113)
def test_usage_counts_what_the_model_saw_after_truncation() -> None:
    async def check(r: Rig) -> None:
        for texts in (["good"], ["good film", "", "a b c"], [text_of(500), "good", text_of(128)]):
            read = (await r.client.post("/tokenize", json={"inputs": texts})).json()
            expected = sum(min(len(one), LIMIT) for one in read)
            answer = await r.client.post("/v1/embeddings", json={"input": texts, "model": "m"})
            assert answer.json()["usage"] == {"prompt_tokens": expected, "total_tokens": expected}
            assert answer.headers["x-compute-tokens"] == str(expected)

    run(check)


@pytest.mark.case(113)
def test_usage_of_reranking_counts_each_pair_as_it_was_read() -> None:
    query = text_of(20)
    documents = [text_of(5), text_of(400), text_of(9)]

    async def main() -> None:
        async with rig(tiny_checkpoints.shared(num_labels=1)) as r:
            pairs = [(query, document) for document in documents]
            expected = int(r.service.tokenizer.encode(pairs).lengths.sum())  # type: ignore[arg-type]
            assert expected == (18 + 3 + 3) + 128 + (18 + 7 + 3)
            for path in ("/v1/rerank", "/v2/rerank"):
                body = {"query": query, "documents": documents, "model": "m"}
                answer = (await r.client.post(path, json=body)).json()
                assert answer["usage"] == {"prompt_tokens": expected, "total_tokens": expected}
                assert answer["meta"]["tokens"]["input_tokens"] == expected
            tei = await r.client.post("/rerank", json={"query": query, "texts": documents})
            assert tei.headers["x-compute-tokens"] == str(expected)

    asyncio.run(main())


BODIES = {
    b"{bad": 400,
    b"": 400,
    b"null": 400,
    b"[]": 400,
    b'{"input":"\xff","inputs":"\xff"}': 400,
    b"[" * 100_000: 400,
    b'{"input":NaN,"inputs":NaN}': 400,
    b'{"input":"a","inputs":"a","x":{"y":[[]]}}': 200,
    b'{"input":"a","input":"b","inputs":"a","inputs":"b"}': 200,
}


@pytest.mark.case(109)
@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:16]))
@pytest.mark.parametrize("path", ["/v1/embeddings", "/embed"])
def test_whatever_is_sent_the_answer_is_json_and_no_500(path: str, body: bytes) -> None:
    async def check(r: Rig) -> None:
        answer = await r.client.post(path, content=body)
        expected = BODIES[body]
        if path == "/embed" and expected == 400:
            assert answer.status_code in (400, 422)
        else:
            assert answer.status_code == expected
        assert answer.headers["content-type"] == "application/json"
        if answer.status_code != 200:
            error = answer.json()["error"]
            told = error["message"] if path.startswith("/v1") else error
            assert isinstance(told, str)
            assert told
            assert ("type" in error) if path.startswith("/v1") else answer.json()["error_type"]

    run(check)


MEDIA = {
    None: 200,
    "application/json": 200,
    "application/json;charset=utf-8": 200,
    "Application/JSON; charset=UTF-8": 200,
    "application/vnd.api+json": 200,
    "text/plain": 415,
    "application/x-www-form-urlencoded": 415,
}


@pytest.mark.case(109)
@pytest.mark.parametrize("kind", MEDIA)
@pytest.mark.parametrize("path", ["/v1/embeddings", "/embed"])
def test_another_media_type_is_415_in_the_shape_of_the_route(path: str, kind: str | None) -> None:
    async def check(r: Rig) -> None:
        headers = {} if kind is None else {"content-type": kind}
        body = b'{"input":"a","inputs":"a"}'
        answer = await r.client.post(path, content=body, headers=headers)
        assert answer.status_code == MEDIA[kind]
        packed = await r.client.post(path, content=body, headers={"content-encoding": "br"})
        assert packed.status_code == 415
        assert packed.headers["accept-encoding"] == "gzip, deflate"
        assert packed.headers["content-type"] == "application/json"
        told = packed.json()["error"]
        assert "compressed" in (told["message"] if path.startswith("/v1") else told)

    run(check)


@pytest.mark.case(115)
def test_head_is_answered_as_get_on_every_path_that_monitors_probe() -> None:
    async def check(r: Rig) -> None:
        paths = ["/health", "/health/live", "/health/ready", "/ready", "/ping", "/metrics", "/"]
        for path in [*paths, "/info", "/v1/models", "/v2/health/ready", "/embed", "/predict"]:
            head, get = await r.client.head(path), await r.client.get(path)
            assert head.status_code == get.status_code, path
            assert head.status_code == 200 or path in ("/v2/health/ready", "/embed", "/predict")

    run(check)
