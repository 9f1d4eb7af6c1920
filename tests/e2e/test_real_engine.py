"""The whole service with the real engine gives what the library gives."""

from __future__ import annotations

import http.client
import json
import math
import random
import string
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from packhorse import Encoder
from tests.e2e.service import Service, service

TEXTS = [
    "I love this film",
    "a complete waste of time",
    "",
    "  \t\n",
    "not bad at all, " * 200,
    "Ünïcödé 日本語 🙂",
]


@pytest.fixture(scope="module")
def server() -> Iterator[Service]:
    with service(real=True, device="cpu", dtype="float32") as made:
        yield made


@pytest.fixture(scope="module")
def encoder() -> Iterator[Encoder]:
    with Encoder(device="cpu", dtype="float32") as made:
        yield made


@pytest.mark.case(1, 51)
def test_scores_are_those_of_the_library(server: Service, encoder: Encoder) -> None:
    inputs = [[text] for text in TEXTS] + [[a, b] for a, b in pairwise(TEXTS)]
    pairs = [one[0] if len(one) == 1 else (one[0], one[1]) for one in inputs]
    answer = server.predict(inputs).json()
    for row, expected in zip(answer, encoder.classify(pairs), strict=True):
        assert [one["label"] for one in row] == [one.label for one in expected]
        assert [one["score"] for one in row] == pytest.approx(
            [one.score for one in expected], abs=1e-5
        )


def test_concurrent_singles_are_those_of_the_list(server: Service) -> None:
    expected = server.predict([[text] for text in TEXTS], raw_scores=True).json()
    with ThreadPoolExecutor(12) as clients:
        answers = list(clients.map(lambda t: server.predict(t, raw_scores=True), TEXTS * 4))
    for answer, row in zip(answers, expected * 4, strict=True):
        assert answer.status_code == 200
        assert {one["label"]: one["score"] for one in answer.json()} == pytest.approx(
            {one["label"]: one["score"] for one in row}, abs=1e-4
        )


def test_info_tells_what_runs(server: Service) -> None:
    info = server.get("/info").json()
    assert (info["device"], info["model_dtype"]) == ("cpu", "float32")
    assert info["max_input_length"] == 512
    assert info["config"]["model"]["device"] == "cpu"


CLIENTS = 50
WORDS = ["good", "bad", "film", "not", "the", "it's", "é", "日本", "Why", "never again", "7", "ok"]


def short_texts(number: int) -> list[str]:
    """Texts of one to three words, single characters and punctuation alone; many occur often."""
    chance = random.Random(77)
    marks = [*string.punctuation, "...", "?!", "—", "。", "*" * 40, "😀"]
    makers = (
        lambda: " ".join(chance.choices(WORDS, k=chance.randint(1, 3))),
        lambda: chance.choice(string.ascii_letters + string.digits + "éß日"),
        lambda: chance.choice(marks),
    )
    return [makers[index % 3]() for index in range(number)]


def logits_of(server: Service, texts: list[str]) -> list[dict[str, float]]:
    """Each text in a request of its own, one after the other on one connection."""
    connection = http.client.HTTPConnection(*server.url.removeprefix("http://").split(":"))
    found = []
    for text in texts:
        body = json.dumps({"inputs": text, "raw_scores": True})
        connection.request("POST", "/predict", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        said = answer.read()
        assert answer.status == 200, said
        found.append({one["label"]: one["score"] for one in json.loads(said)})
    connection.close()
    return found


def short_texts_are_answered(server: Service, number: int) -> None:
    texts = short_texts(number)
    parts = [texts[first::CLIENTS] for first in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as clients:
        answers = list(clients.map(lambda part: logits_of(server, part), parts))
    first: dict[str, dict[str, float]] = {}
    for part, rows in zip(parts, answers, strict=True):
        for text, row in zip(part, rows, strict=True):
            assert row.keys() == {"NEGATIVE", "POSITIVE"}
            assert all(math.isfinite(score) for score in row.values())
            assert row == pytest.approx(first.setdefault(text, row), abs=1e-5, rel=0)
    assert len(first) < number / 2  # so that equal texts were compared


@pytest.mark.case(77)
def test_very_short_texts_are_answered_in_full_and_alike(server: Service) -> None:
    short_texts_are_answered(server, 500)


@pytest.mark.long
@pytest.mark.case(77)
def test_ten_thousand_very_short_texts(server: Service, request: pytest.FixtureRequest) -> None:
    is_slice = request.config.getoption("--slice")
    short_texts_are_answered(server, 1000 if is_slice else 10_000)
