"""What clients write in other ways than the documents do, and mean the same by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests import tiny_checkpoints
from tests.unit.test_app import Rig, error_of, rig

JSON = {"content-type": "application/json"}


def run(check: Callable[[Rig], Any], **options: Any) -> None:
    """``check`` with the demo model, or with a tiny BERT of these options."""

    async def main() -> None:
        async with rig(tiny_checkpoints.shared("bert", **options) if options else None) as r:
            await check(r)

    asyncio.run(main())


async def same(r: Rig, path: str, body: dict[str, Any], **more: Any) -> None:
    """Each of ``more`` alone, and all together, leave the answer as it is."""
    plain = await r.client.post(path, json=body)
    assert plain.status_code == 200, plain.text
    kept = {"data", "results"}
    for added in (*({key: value} for key, value in more.items()), more):
        answer = await r.client.post(path, json=body | added)
        assert answer.status_code == 200, answer.text
        first, second = plain.json(), answer.json()
        if isinstance(first, dict):
            first, second = ({k: d[k] for k in kept & d.keys()} for d in (first, second))
        assert first == second, added


@pytest.mark.case(105, 109)
def test_null_is_as_if_the_key_were_not_there() -> None:
    truncation = {"truncate": None, "truncation_direction": None}

    async def classifier(r: Rig) -> None:
        await same(r, "/predict", {"inputs": "a"}, raw_scores=None, stride=None, **truncation)
        await same(r, "/classify", {"input": "a"}, use_activation=None, model=None)
        await same(r, "/tokenize", {"inputs": "a"}, add_special_tokens=None, prompt_name=None)
        await same(r, "/decode", {"ids": [101, 102]}, skip_special_tokens=None)

    async def embedder(r: Rig) -> None:
        nulls = {"normalize": None, "dimensions": None, "prompt_name": None, **truncation}
        await same(r, "/embed", {"inputs": ["a"]}, **nulls)
        nulls = dict.fromkeys(("model", "user", "encoding_format", "dimensions", "stride"))
        await same(r, "/v1/embeddings", {"input": "a"}, **nulls)
        both = {"inputs": {"source_sentence": "a", "sentences": ["b"]}}
        await same(r, "/similarity", both, parameters=truncation)

    async def reranker(r: Rig) -> None:
        nulls = {"raw_scores": None, "return_text": None, **truncation}
        await same(r, "/rerank", {"query": "a", "texts": ["b", "c"]}, **nulls)
        nulls = dict.fromkeys(("top_n", "return_documents", "model", "rank_fields"))
        await same(r, "/v1/rerank", {"query": "a", "documents": ["b", "c"]}, **nulls)

    run(classifier)
    run(embedder, head="Model", num_labels=None)
    run(reranker, num_labels=1)


@pytest.mark.case(107)
def test_slashes_too_many_lead_to_the_same_route() -> None:
    async def check(r: Rig) -> None:
        host = str(r.client.base_url).rstrip("/")
        for path in ("/predict/", "/predict//", "//predict"):
            answer = await r.client.post(host + path, json={"inputs": "a"})
            assert answer.status_code == 200, path
        for path in ("/health/", "/metrics/", "/info/", "/v1/models/", "/v1//models"):
            assert (await r.client.get(host + path)).status_code == 200, path
        for path in ("/predictions/", "/v1/", "/v1/predict/"):
            assert (await r.client.post(path, json={"inputs": "a"})).status_code == 404, path
        shown = (await r.client.get("/metrics")).text
        assert 'packhorse_requests_total{route="predict",status="200"' in shown

    run(check)


@pytest.mark.case(109)
def test_a_byte_order_mark_before_the_body_is_no_fault() -> None:
    async def check(r: Rig) -> None:
        plain = await r.client.post("/predict", content=b'{"inputs":"a"}', headers=JSON)
        marked = await r.client.post(
            "/predict", content=b'\xef\xbb\xbf{"inputs":"a"}', headers=JSON
        )
        assert marked.json() == plain.json()
        wide = await r.client.post(
            "/predict", content='{"inputs":"a"}'.encode("utf-16"), headers=JSON
        )
        assert error_of(wide).startswith("400")

    run(check)


@pytest.mark.case(81)
@pytest.mark.parametrize("escape", ["\\ud800", "\\ud83d x", "\\udc00", "\\ud83d\\ud83d\\ude00"])
def test_half_a_surrogate_pair_is_called_that(escape: str) -> None:
    async def check(r: Rig) -> None:
        body = b'{"inputs":"\\ud83d\\ude00 \\\\udfff ' + escape.encode() + b'"}'
        answer = await r.client.post("/predict", content=body, headers=JSON)
        assert error_of(answer).startswith("400")
        place = body.index(escape.encode(), 30)
        assert f"half of a surrogate pair (byte {place})" in answer.text
        whole = body.replace(escape.encode(), b"")
        answer = await r.client.post("/predict", content=whole, headers=JSON)
        assert answer.status_code == 200

    run(check)


@pytest.mark.case(53)
def test_rerankers_are_asked_in_every_servers_words() -> None:
    async def check(r: Rig) -> None:
        asked = {"query": "a", "documents": ["b", "c d"]}
        plain = (await r.client.post("/v1/rerank", json=asked)).json()
        for path in ("/rerank", "/v2/rerank", "/rerank/"):
            answer = (await r.client.post(path, json=asked)).json()
            assert answer["results"] == plain["results"]
        one = (await r.client.post("/rerank", json=asked | {"top_n": 1})).json()
        assert one["results"] == plain["results"][:1]
        neither = await r.client.post("/rerank", json={"query": "a"})
        assert error_of(neither).startswith("422")
        assert "`texts` is missing" in neither.text
        given = {"query": "a", "texts": ["b", "c d"], "raw_scores": True}
        raw = [row["score"] for row in (await r.client.post("/rerank", json=given)).json()]
        for words in ({"raw_scores": True}, {"use_activation": False}):
            answer = (await r.client.post("/v1/rerank", json=asked | words)).json()
            assert [row["relevance_score"] for row in answer["results"]] == raw
        usual = (await r.client.post("/score", json={"text_1": "a", "text_2": ["b", "c"]})).json()
        for first, second in (("queries", "documents"), ("queries", "items"), ("data_1", "data_2")):
            answer = await r.client.post("/score", json={first: "a", second: ["b", "c"]})
            assert answer.json()["data"] == usual["data"]
        lacking = await r.client.post("/score", json={"queries": "a"})
        assert lacking.status_code == 400
        assert "text_2" in lacking.json()["error"]["message"]

    run(check, num_labels=1)


@pytest.mark.case(51)
def test_pipelines_read_pairs_as_objects_and_as_lists_within_a_list() -> None:
    async def check(r: Rig) -> None:
        async def asked(inputs: Any, **parameters: Any) -> Any:
            body = {"inputs": inputs, "parameters": {"function_to_apply": "none", **parameters}}
            answer = await r.client.post("/", json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()

        pair = (await r.predict([["good film", "bad film"]], raw_scores=True)).json()
        both = {"text": "good film", "text_pair": "bad film"}
        for inputs in (both, [both], [["good film", "bad film"]]):
            assert await asked(inputs) == pair
        assert len(await asked(["good film", "bad film"])) == 2
        wrong = await r.client.post("/", json={"inputs": [["a", "b", "c"]], "parameters": {}})
        assert error_of(wrong).startswith("422")
        empty = await r.client.post("/", json={"inputs": [], "parameters": {}})
        assert error_of(empty).startswith("400 Empty")

    run(check)


@pytest.mark.case(115)
def test_monitors_of_triton_find_what_they_look_for() -> None:
    async def check(r: Rig) -> None:
        for path in ("/v2/health/ready", "/v2/health/live"):
            assert [
                (await r.client.request(method, path)).status_code for method in ("GET", "HEAD")
            ] == [200, 200]
        r.engine.fault = "no engine is ready"
        assert (await r.client.get("/v2/health/ready")).status_code == 503
        assert (await r.client.get("/v2/health/live")).status_code == 200

    run(check)
