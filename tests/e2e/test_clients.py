"""The clients that people have against running servers: openai's and huggingface_hub's packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from huggingface_hub import InferenceClient, constants
from huggingface_hub.errors import HfHubHTTPError

from packhorse import Encoder
from tests import tiny_checkpoints
from tests.e2e.service import Service
from tests.models.test_sentence import pooling
from tests.unit.test_rerank import inference_model

pytestmark = pytest.mark.long

openai = pytest.importorskip("openai")

TEXTS = ["a good film", "The story was slow, and the sound was bad!", "日本語", ""]
KEY = "a-key-of-some-length"
LABELS = ["music", "war"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    embedder = tiny_checkpoints.make_bert(root / "embed", head="Model", num_labels=None)
    tiny_checkpoints.add_modules(embedder, pooling("mean_tokens"))
    return {
        "embed": embedder,
        "classify": inference_model(root / "classify"),
        "token_classify": tiny_checkpoints.shared(head="ForTokenClassification", num_labels=5),
        "fill_mask": tiny_checkpoints.shared(head="ForMaskedLM", num_labels=None),
    }


def started(folder: Path, **settings: Any) -> Iterator[Service]:
    service = Service(
        real=True, model_id=folder, device="cpu", dtype="float32", front_ends=1, **settings
    )
    try:
        yield service.start()
    finally:
        service.close()


@pytest.fixture(scope="module")
def embedder(folders: dict[str, Path]) -> Iterator[Service]:
    yield from started(folders["embed"], api_key=KEY)


@pytest.fixture(scope="module")
def classifier(folders: dict[str, Path]) -> Iterator[Service]:
    yield from started(folders["classify"])


@pytest.fixture(scope="module")
def token_classifier(folders: dict[str, Path]) -> Iterator[Service]:
    yield from started(folders["token_classify"])


@pytest.fixture(scope="module")
def filler(folders: dict[str, Path]) -> Iterator[Service]:
    yield from started(folders["fill_mask"], task="fill_mask")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Callable[..., InferenceClient]:
    """The hub's client for a server."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # it is asked for nothing but this

    def made(service: Service, token: str | None = None) -> InferenceClient:
        return InferenceClient(base_url=service.url, token=token)

    return made


def library(folder: Path) -> Encoder:
    return Encoder(folder, device="cpu", dtype="float32")


def close(got: Any, expected: Any) -> bool:
    return bool(np.abs(np.array(got) - np.array(expected)).max() < 1e-5)


@pytest.mark.case(105)
def test_the_openai_package_embeds(embedder: Service, folders: dict[str, Path]) -> None:
    client = openai.OpenAI(base_url=embedder.url + "/v1", api_key=KEY, max_retries=0)
    with library(folders["embed"]) as encoder:
        expected = encoder.embed(TEXTS, normalize=True)
        few = encoder.embed(TEXTS, normalize=True, dimensions=8)
        sequences = encoder.encode(TEXTS)
    bounds = sequences.cu_seqlens.tolist()
    ids = [sequences.input_ids[start:end].tolist() for start, end in pairwise(bounds)]
    made = client.embeddings.create(model="m", input=TEXTS)  # base64 on the wire
    assert close([one.embedding for one in made.data], expected)
    assert [one.index for one in made.data] == list(range(len(TEXTS)))
    assert made.usage.prompt_tokens == made.usage.total_tokens == sequences.num_tokens
    plain = client.embeddings.create(model="m", input=TEXTS, encoding_format="float")
    assert close([one.embedding for one in plain.data], expected)
    short = client.embeddings.create(model="m", input=TEXTS, dimensions=8)
    assert close([one.embedding for one in short.data], few)
    for given, wanted in ((TEXTS[0], expected[:1]), (ids, expected), (ids[0], expected[:1])):
        answer = client.embeddings.create(model="m", input=given)
        assert close([one.embedding for one in answer.data], wanted)


def test_the_openai_package_lists_the_model(embedder: Service) -> None:
    client = openai.OpenAI(base_url=embedder.url + "/v1", api_key=KEY, max_retries=0)
    (model,) = client.models.list().data
    assert model.object == "model"
    assert model.owned_by == "packhorse"
    made = client.embeddings.create(model=model.id, input="a")
    assert made.model == model.id


def test_the_openai_package_raises_its_own_errors(embedder: Service, classifier: Service) -> None:
    client = openai.OpenAI(base_url=embedder.url + "/v1", api_key=KEY, max_retries=0)
    with pytest.raises(openai.BadRequestError, match="`dimensions` is 99") as caught:
        client.embeddings.create(model="m", input="a", dimensions=99)
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError, match="empty list"):
        client.embeddings.create(model="m", input=[])
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").embeddings.create(model="m", input="a")
    other = openai.OpenAI(base_url=classifier.url + "/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.APIStatusError, match="classifies texts") as refused:
        other.embeddings.create(model="m", input="a")
    assert (refused.value.status_code, refused.value.code) == (424, "unsupported_task")


def test_the_hubs_client_embeds(
    embedder: Service, folders: dict[str, Path], hub: Callable[..., InferenceClient]
) -> None:
    client = hub(embedder, KEY)
    with library(folders["embed"]) as encoder:
        unit, plain = encoder.embed(TEXTS, normalize=True), encoder.embed(TEXTS)
        cosines = encoder.similarity(TEXTS[:1], TEXTS[1:])[0]
    assert close(client.feature_extraction(TEXTS[0]), unit[:1])
    assert close(client.feature_extraction(TEXTS), unit)
    assert close(client.feature_extraction(TEXTS, normalize=False), plain)
    assert client.feature_extraction(TEXTS, dimensions=8).shape == (len(TEXTS), 8)
    assert close(client.sentence_similarity(TEXTS[0], TEXTS[1:]), cosines)
    with pytest.raises(HfHubHTTPError, match="401"):
        hub(embedder).feature_extraction("a")


def test_the_hubs_client_classifies(
    classifier: Service, folders: dict[str, Path], hub: Callable[..., InferenceClient]
) -> None:
    client = hub(classifier)
    with library(folders["classify"]) as encoder:
        (expected,) = encoder.classify(TEXTS[:1])
        (logits,) = encoder.classify(TEXTS[:1], raw_scores=True)
        (unseen,) = encoder.zero_shot(TEXTS[:1], LABELS)
        (several,) = encoder.zero_shot(TEXTS[:1], LABELS, "It is {}.", multi_label=True)
    got = client.text_classification(TEXTS[0])
    assert [one.label for one in got] == [one.label for one in expected]
    assert close([one.score for one in got], [one.score for one in expected])
    (best,) = client.text_classification(TEXTS[0], top_k=1, function_to_apply="none")
    assert best.score == pytest.approx(logits[0].score, abs=1e-5)
    for found, wanted in (
        (client.zero_shot_classification(TEXTS[0], LABELS), unseen),
        (
            client.zero_shot_classification(
                TEXTS[0], LABELS, multi_label=True, hypothesis_template="It is {}."
            ),
            several,
        ),
    ):
        assert [one.label for one in found] == [one.label for one in wanted]
        assert close([one.score for one in found], [one.score for one in wanted])
    with pytest.raises(HfHubHTTPError, match="top_k"):
        client.text_classification(TEXTS[0], top_k=0)


@pytest.mark.parametrize("strategy", [None, "none", "first"])
def test_the_hubs_client_finds_entities(
    token_classifier: Service,
    folders: dict[str, Path],
    hub: Callable[..., InferenceClient],
    strategy: Any,
) -> None:
    with library(folders["token_classify"]) as encoder:
        (expected,) = encoder.token_classify(TEXTS[1:2], strategy or "simple")
    got = hub(token_classifier).token_classification(TEXTS[1], aggregation_strategy=strategy)
    assert [(one.word, one.start, one.end) for one in got] == [
        (one.word, one.start, one.end) for one in expected
    ]
    names = [one.entity if strategy == "none" else one.entity_group for one in got]
    assert names == [one.label for one in expected]
    assert close([one.score for one in got], [one.score for one in expected])


def test_the_hubs_client_fills_masks(
    filler: Service, folders: dict[str, Path], hub: Callable[..., InferenceClient]
) -> None:
    client, text = hub(filler), "a [MASK] film"
    with Encoder(folders["fill_mask"], device="cpu", dtype="float32", task="fill_mask") as encoder:
        plain, named = encoder.fill_mask([text])[0], encoder.fill_mask([text], 2, LABELS)[0]
        several = encoder.fill_mask(["[MASK] and [MASK]"], 2)[0]
    for got, fills in (
        (client.fill_mask(text), plain[0]),
        (client.fill_mask(text, targets=LABELS, top_k=2), named[0]),
    ):
        assert [(one.token, one.token_str, one.sequence) for one in got] == [
            (one.token, one.token_str, one.sequence) for one in fills
        ]
        assert close([one.score for one in got], [one.score for one in fills])
    body = {"inputs": ["[MASK] and [MASK]", text], "parameters": {"top_k": 2}}
    both = httpx.post(filler.url, json=body).json()
    assert [[one["token"] for one in mask] for mask in both[0]] == [
        [one.token for one in mask] for mask in several
    ]
    assert [one["token"] for one in both[1]] == [one.token for one in plain[0][:2]]
    with pytest.raises(HfHubHTTPError, match="has no mask"):
        client.fill_mask("a film")


def test_masks_are_filled_with_what_was_cut_and_counted(
    filler: Service, folders: dict[str, Path]
) -> None:
    texts = ["a [MASK] film", "[MASK] and [MASK] " + "word " * 300]
    with Encoder(folders["fill_mask"], device="cpu", dtype="float32", task="fill_mask") as encoder:
        expected = encoder.fill_mask(texts, 60)
    answer = httpx.post(filler.url + "/v1/fill_mask", json={"inputs": texts, "top_k": 60})
    body = answer.json()
    assert [[[one["token"] for one in mask] for mask in text] for text in body["data"]] == [
        [[one.token for one in mask] for mask in text] for text in expected
    ]
    assert (body["truncated"], answer.headers["x-truncated"]) == (1, "1")
    assert body["usage"]["prompt_tokens"] == 5 + 2 * 128
    own = httpx.post(filler.url, json={"inputs": texts, "top_k": 60}).json()
    for first, second in zip(own["data"], body["data"], strict=True):
        for one, other in zip(first, second, strict=True):
            assert [fill["token"] for fill in one] == [fill["token"] for fill in other]
            # Not to the last bit: on a busy machine texts meet in other batches.
            assert close([fill["score"] for fill in one], [fill["score"] for fill in other])
    for wrong, says in (
        ({"inputs": texts, "truncate": False}, "inputs[1] has"),
        ({"inputs": ["a"]}, "put [MASK] where"),
        ({"inputs": texts, "top_k": 0}, "`top_k` is 0"),
        ({"inputs": texts, "targets": []}, "names no token"),
        ({"inputs": ["[MASK] " * 100] * 100, "top_k": 10**6}, "ask for fewer tokens with `top_k`"),
    ):
        refused = httpx.post(filler.url + "/v1/fill_mask", json=wrong)
        assert refused.status_code == 422, refused.text
        assert says in refused.json()["error"], refused.text
    embeds = httpx.post(filler.url + "/embed", json={"inputs": "a"})
    assert embeds.status_code == 424


def test_a_body_without_parameters_is_in_teis_shape(classifier: Service) -> None:
    for path in ("/", "/invocations"):
        flat = httpx.post(classifier.url + path, json={"inputs": "a"}).json()
        assert isinstance(flat[0], dict)
        spoken = httpx.post(classifier.url + path, json={"inputs": '"parameters"'}).json()
        assert isinstance(spoken[0], dict)
        named = httpx.post(classifier.url + path, json={"inputs": "a", "parameters": {}}).json()
        assert isinstance(named[0], list)
        wrong = httpx.post(classifier.url + path, json={"inputs": 1, "parameters": {}})
        assert wrong.status_code == 422
