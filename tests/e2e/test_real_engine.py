"""The whole service with the real engine gives what the library gives."""

from __future__ import annotations

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
