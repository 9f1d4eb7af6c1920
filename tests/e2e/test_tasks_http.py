"""Every task over HTTP, with a server of real processes, and with the clients that people have."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from packhorse import Encoder
from tests import tiny_checkpoints
from tests.e2e.service import Service
from tests.models.test_sentence import pooling
from tests.unit.test_rerank import inference_model

pytestmark = pytest.mark.long

KEY = "secret"
SAYS_KEY = {"authorization": f"Bearer {KEY}"}

TEXTS = ["a good film", "The story was slow, and the sound was bad!", "日本語", ""]


def served(folder: Path, **settings: Any) -> Iterator[Service]:
    service = Service(real=True, model_id=folder, device="cpu", dtype="float32", **settings)
    try:
        yield service.start()
    finally:
        service.close()


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("e") / "m"
    tiny_checkpoints.make_bert(folder, head="Model", num_labels=None)
    prompts = {"prompts": {"query": "find this: "}, "default_prompt_name": None}
    tiny_checkpoints.add_modules(
        folder, pooling("mean_tokens"), config_sentence_transformers=prompts
    )
    limits = {"answer_limit": 3_000_000, "max_client_batch_size": 100_000}
    for service in served(folder, api_key=KEY, **limits):
        service.folder = folder  # type: ignore[attr-defined]
        yield service


def test_many_large_answers_at_once_wait_for_each_other(embedder: Service) -> None:
    """Some 2 MB each, with room for one of them; what one too large asks for is refused."""
    with Encoder(embedder.folder, device="cpu", dtype="float32") as encoder:  # type: ignore[attr-defined]
        longest = encoder.info["max_input_length"]
    texts = [f"{word} " * longest for word in tiny_checkpoints.WORDS[:32]]
    count = 2_000_000 // (longest * 32 * 4 * len(texts)) + 1
    body = {"inputs": texts * count}
    alone = post(embedder, "/embed_all", body)
    assert alone.status_code == 200
    with ThreadPoolExecutor(4) as clients:
        answers = [clients.submit(post, embedder, "/embed_all", body) for _ in range(4)]
        refused = post(embedder, "/embed_all", {"inputs": texts * (2 * count)})
        small = post(embedder, "/embed", {"inputs": texts[:2]})
    assert refused.status_code == 422
    assert "--answer-limit" in refused.json()["error"]
    assert small.status_code == 200
    assert all(answer.result().content == alone.content for answer in answers)
    assert "cut off" not in embedder.log
    assert embedder.metric("packhorse_inputs_in_flight") == 0


@pytest.fixture(scope="module")
def reranker() -> Iterator[Service]:
    yield from served(tiny_checkpoints.shared(num_labels=1))


def post(service: Service, path: str, body: Any, **options: Any) -> httpx.Response:
    """With the embedder's key; the other servers want none."""
    return httpx.post(service.url + path, json=body, timeout=60, **{"headers": SAYS_KEY} | options)


def close(got: Any, expected: Any) -> bool:
    return bool(np.abs(np.array(got) - np.array(expected)).max() < 1e-5)


@pytest.mark.case(59, 61, 105, 107, 113)
def test_an_embedding_server_speaks_teis_and_openais_shapes(embedder: Service) -> None:
    with Encoder(embedder.folder, device="cpu", dtype="float32") as encoder:  # type: ignore[attr-defined]
        raw, unit = encoder.embed(TEXTS), encoder.embed(TEXTS, normalize=True)
        tokens, lengths = encoder.embed_tokens(TEXTS), encoder.encode(TEXTS).lengths
        prompted = encoder.embed(TEXTS, prompt_name="query")
    answer = post(embedder, "/embed", {"inputs": TEXTS})
    assert close(answer.json(), unit)
    assert answer.headers["x-compute-tokens"] == str(int(lengths.sum()))
    assert close(post(embedder, "/embed", {"inputs": TEXTS[0]}).json(), unit[:1])
    assert close(post(embedder, "/embed", {"inputs": TEXTS, "normalize": False}).json(), raw)
    named = {"inputs": TEXTS, "normalize": False, "prompt_name": "query"}
    assert close(post(embedder, "/embed", named).json(), prompted)
    few = post(embedder, "/embed", {"inputs": TEXTS, "dimensions": 8}).json()
    assert close(np.linalg.norm(few, axis=1), np.ones(len(TEXTS)))
    everything = post(embedder, "/embed_all", {"inputs": TEXTS}).json()
    assert all(close(one, other) for one, other in zip(everything, tokens, strict=True))
    asked = {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS}}
    assert close(post(embedder, "/similarity", asked).json(), unit[:1] @ unit.T)
    read = post(embedder, "/tokenize", {"inputs": TEXTS}).json()
    assert [len(one) for one in read] == lengths.tolist()
    assert read[0][0] == {"id": 2, "text": "[CLS]", "special": True, "start": None, "stop": None}
    assert [TEXTS[0][one["start"] : one["stop"]] for one in read[0][1:-1]] == ["a", "good", "film"]
    ids = [[one["id"] for one in each] for each in read]
    assert post(embedder, "/decode", {"ids": ids[0]}).json() == ["a good film"]
    assert close(post(embedder, "/embed", {"inputs": ids}).json(), unit)
    for path in ("/v1/embeddings", "/embeddings", "/v1/embeddings/"):
        listed = post(embedder, path, {"input": TEXTS, "model": "anything", "dimensions": 32})
        assert close([one["embedding"] for one in listed.json()["data"]], unit)
        assert listed.json()["usage"]["prompt_tokens"] == lengths.sum()
    packed = post(embedder, "/v1/embeddings", {"input": ids[0], "encoding_format": "base64"})
    text = packed.json()["data"][0]["embedding"]
    assert len(text) == 4 * -(-32 * 4 // 3)
    assert close(np.frombuffer(base64.b64decode(text), "<f4"), unit[0])
    assert embedder.get("/v1/models", headers=SAYS_KEY).json()["data"][0]["task"] == "embed"
    kind = embedder.get("/info", headers=SAYS_KEY).json()["model_type"]
    assert kind == {"embedding": {"pooling": "mean", "dimensions": 32}}


def test_an_embedding_server_speaks_vllms_shapes(embedder: Service) -> None:
    with Encoder(embedder.folder, device="cpu", dtype="float32") as encoder:  # type: ignore[attr-defined]
        raw, unit = encoder.embed(TEXTS), encoder.embed(TEXTS, normalize=True)
        tokens = encoder.embed_tokens(TEXTS)
    embedded: list[tuple[dict[str, Any], Any]] = [
        ({}, unit),
        ({"task": "embed", "use_activation": False}, raw),
    ]
    for said, vectors in embedded:
        answer = post(embedder, "/pooling", {"input": TEXTS, **said}).json()
        assert close([one["data"] for one in answer["data"]], vectors)
    body = {"input": TEXTS, "task": "token_embed"}
    plain = post(embedder, "/pooling", body | {"use_activation": False}).json()["data"]
    active = post(embedder, "/pooling", body).json()["data"]
    for one, other, wanted in zip(plain, active, tokens, strict=True):
        assert close(one["data"], wanted)
        assert close(other["data"], wanted / np.linalg.norm(wanted, axis=1, keepdims=True))
    cut = post(embedder, "/pooling", body | {"truncate_prompt_tokens": 4}).json()["data"]
    assert [len(one["data"]) for one in cut] == [min(4, len(each)) for each in tokens]
    packed = post(embedder, "/pooling", body | {"encoding_format": "base64"}).json()["data"]
    numbers = np.frombuffer(base64.b64decode(packed[1]["data"]), "<f4")
    assert close(numbers.reshape(-1, 32), active[1]["data"])
    scored = post(embedder, "/score", {"text_1": TEXTS[0], "text_2": TEXTS}).json()["data"]
    assert close([one["score"] for one in scored], unit[0] @ unit.T)


def test_a_sparse_server_speaks_teis_shape() -> None:
    folder = tiny_checkpoints.shared("bert", head="ForMaskedLM", num_labels=None)
    with Encoder(folder, device="cpu", dtype="float32", pooling="splade") as encoder:
        vectors, ids = encoder.embed_sparse(TEXTS), encoder.encode(TEXTS)
    expected = [
        [
            {"index": index, "value": pytest.approx(value, abs=1e-5)}
            for index, value in zip(each.indices.tolist(), each.values.tolist(), strict=True)
        ]
        for each in vectors
    ]
    for server in served(folder, pooling="splade"):
        check_sparse(server, expected, ids)


def check_sparse(server: Service, expected: Any, ids: Any) -> None:
    for path in ("/embed_sparse", "/"):
        answer = post(server, path, {"inputs": TEXTS})
        assert answer.json() == expected
        assert answer.headers["x-compute-tokens"] == str(ids.num_tokens)
    assert post(server, "/embed_sparse", {"inputs": TEXTS[0]}).json() == expected[:1]
    first = ids.input_ids[: ids.cu_seqlens[1]].tolist()
    assert post(server, "/embed_sparse", {"inputs": first}).json() == expected[:1]
    kind = server.get("/info").json()["model_type"]["embedding"]
    assert kind["pooling"] == "splade"
    refused = post(server, "/embed", {"inputs": TEXTS})
    assert refused.status_code == 424
    assert "embeds texts sparsely (task embed_sparse)" in refused.json()["error"]
    unknown = post(server, "/embed_sparse", {"inputs": "a", "prompt_name": "none"})
    assert unknown.status_code == 422


@pytest.mark.parametrize("path", ["/predict", "/rerank", "/v1/zero_shot", "/v1/token_classify"])
@pytest.mark.case(29)
def test_another_task_is_424_and_says_what_is_loaded(embedder: Service, path: str) -> None:
    answer = post(embedder, path, {"inputs": "a"})
    assert answer.status_code == 424
    assert answer.json()["error_type"] == "Backend"
    assert "the loaded model embeds texts (task embed)" in answer.json()["error"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"input": []}, 400),
        ({"input": ["a", 1]}, 400),
        ({"input": ["a"], "encoding_format": "hex"}, 400),
        ({"input": ["a"], "dimensions": 33}, 400),
        ({"input": [[]]}, 400),
        ({"input": [999999]}, 400),
        ({}, 400),
        (None, 400),
        ([], 400),
    ],
)
@pytest.mark.case(105, 109)
def test_openais_clients_get_its_error_object(embedder: Service, body: Any, status: int) -> None:
    answer = post(embedder, "/v1/embeddings", body)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("content", [b"{bad", b"", b'{"input": "\xff"}', b"[" * 100_000])
@pytest.mark.case(109)
def test_what_is_not_json_is_refused_as_json(embedder: Service, content: bytes) -> None:
    for path in ("/v1/embeddings", "/embed"):
        answer = httpx.post(
            embedder.url + path,
            content=content,
            headers={"content-type": "application/json"} | SAYS_KEY,
        )
        assert answer.status_code in ((400,) if path.startswith("/v1") else (400, 422))
        assert answer.headers["content-type"] == "application/json"
        assert "error" in answer.json()


def test_the_models_own_route_at_the_root_needs_a_key_like_any(embedder: Service) -> None:
    for path in ("/", "/invocations", "/embed", "/v1/models"):
        assert post(embedder, path, {"inputs": "a"}, headers={}).status_code in (401, 405)
    vector = post(embedder, "/embed", {"inputs": "a"}).json()
    for path in ("/", "/invocations"):
        assert post(embedder, path, {"inputs": "a"}).json() == vector
    assert embedder.get("/").status_code == 200


@pytest.mark.case(53, 113)
def test_a_reranking_server_speaks_everybodys_shape(reranker: Service) -> None:
    with Encoder(tiny_checkpoints.shared(num_labels=1), device="cpu", dtype="float32") as encoder:
        ranked = encoder.rerank("a story", TEXTS)
        pairs = [("a story", text) for text in TEXTS]
        tokens = int(encoder.encode(pairs).lengths.sum())
    order = [one.index for one in ranked]
    tei = post(reranker, "/rerank", {"query": "a story", "texts": TEXTS, "return_text": True})
    assert [one["index"] for one in tei.json()] == order
    assert [one["text"] for one in tei.json()] == [TEXTS[i] for i in order]
    assert close([one["score"] for one in tei.json()], [one.score for one in ranked])
    for path in ("/v1/rerank", "/v2/rerank"):
        body = {"query": "a story", "documents": [*TEXTS[:3], {"text": TEXTS[3]}], "top_n": 2}
        answer = post(reranker, path, body | {"return_documents": True}).json()
        assert [one["index"] for one in answer["results"]] == order[:2]
        assert answer["results"][0]["document"] == {"text": TEXTS[order[0]]}
        assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
        assert answer["meta"]["tokens"]["input_tokens"] == tokens
    scored = post(reranker, "/score", {"text_1": "a story", "text_2": TEXTS}).json()
    by_index = {one.index: one.score for one in ranked}
    assert close([one["score"] for one in scored["data"]], [by_index[i] for i in range(4)])
    assert len(post(reranker, "/predict", {"inputs": ["a story", "b"]}).json()) == 1
    empty = post(reranker, "/rerank", {"query": "a", "texts": []})
    assert empty.status_code == 400


def test_a_classifying_server_has_vllms_route_and_zero_shot(tmp_path: Path) -> None:
    folder = inference_model(tmp_path)
    with Encoder(folder, device="cpu", dtype="float32") as encoder:
        scores = encoder.predict_proba(TEXTS)
        unseen = encoder.zero_shot(TEXTS, ["war", "music"])
    for service in served(folder, gzip="true"):
        answer = post(service, "/classify", {"input": TEXTS}).json()
        assert close([one["probs"] for one in answer["data"]], scores)
        assert answer["data"][0]["num_classes"] == 3
        got = post(service, "/v1/zero_shot", {"inputs": TEXTS, "labels": ["war", "music"]}).json()
        assert [[one["label"] for one in row] for row in got["data"]] == [
            [one.label for one in row] for row in unseen
        ]
        large = post(service, "/classify", {"input": ["a"] * 500})
        assert large.headers["content-encoding"] == "gzip"
        assert len(large.json()["data"]) == 500
        # Refused before anything is made of them, which would take the machine's memory.
        product = {"inputs": ["a"] * 300_000, "labels": ["b"] * 300_000}
        assert post(service, "/v1/zero_shot", product).status_code == 422
        wide = {"inputs": "a", "labels": ["b"], "hypothesis_template": "{:>999999999999}"}
        assert post(service, "/v1/zero_shot", wide).status_code == 422
        assert post(service, "/tokenize", {"inputs": ["a"] * 20_000}).status_code == 422
        assert post(service, "/decode", {"ids": [[1]] * 20_000}).status_code == 422
        embedding = post(service, "/v1/embeddings", {"input": "a"})
        assert embedding.status_code == 424
        assert embedding.json()["error"]["code"] == "unsupported_task"


@pytest.mark.case(65)
def test_a_token_classifying_server_gives_entities() -> None:
    folder = tiny_checkpoints.shared(head="ForTokenClassification", num_labels=5)
    long = "word " * 500
    with Encoder(folder, device="cpu", dtype="float32") as encoder:
        expected = encoder.token_classify([*TEXTS, long], "simple")
        in_windows = encoder.token_classify([long, "a"], "simple", stride=4)
    for service in served(folder):
        answer = post(service, "/v1/token_classify", {"inputs": [*TEXTS, long]})
        found = answer.json()
        assert found["truncated"] == 1
        for row, wanted in zip(found["data"], expected, strict=True):
            assert [(e["label"], e["word"], e["start"], e["end"]) for e in row] == [
                (e.label, e.word, e.start, e.end) for e in wanted
            ]
        assert "index" in json.dumps(found["data"][0])
        each = {"inputs": TEXTS, "aggregation_strategy": "none", "ignore_labels": []}
        entities = post(service, "/v1/token_classify", each).json()["data"]
        pooled = post(service, "/pooling", {"input": TEXTS}).json()["data"]
        for row, one in zip(entities, pooled, strict=True):
            best = np.array(one["data"]).max(axis=1)[1:-1]  # without [CLS] and [SEP]
            assert len(row) == len(best)
            assert not row or close([entity["score"] for entity in row], best)
        windows = post(service, "/v1/token_classify", {"inputs": [long, "a"], "stride": 4}).json()
        assert windows["truncated"] == 0
        assert windows["usage"]["total_tokens"] > 500
        assert [[e["end"] for e in row] for row in windows["data"]] == [
            [e.end for e in row] for row in in_windows
        ]
        metrics = httpx.get(service.url + "/metrics").text
        assert "\npackhorse_inputs_in_flight 0.0\n" in metrics
        wrong = post(service, "/v1/token_classify", {"inputs": "a", "aggregation_strategy": "most"})
        assert wrong.status_code == 422
