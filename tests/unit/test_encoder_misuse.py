"""The library in hands that take it otherwise than it was meant."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from packhorse import Encoder
from packhorse.errors import ValidationError
from packhorse.request import Answer, Sequences
from tests import tiny_checkpoints


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(tiny_checkpoints.shared(num_labels=3), device="cpu", dtype="float32")


class Interrupted(Future[Answer]):
    """What is waited for while somebody presses Ctrl-C."""

    def result(self, timeout: float | None = None) -> Answer:
        raise KeyboardInterrupt


@pytest.mark.case(79)
def test_what_ctrl_c_ended_is_not_computed_any_more(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[Future[Answer]] = []

    def submit(sequences: Sequences) -> Future[Answer]:
        pieces.append(Interrupted())
        return pieces[-1]

    with monkeypatch.context() as patched:
        patched.setattr(encoder._loaded.engine, "submit", submit)
        with pytest.raises(KeyboardInterrupt):
            encoder.classify(["a"] * 5000)
    assert len(pieces) > 1
    assert all(piece.cancelled() for piece in pieces)
    assert len(encoder.classify(["a"])) == 1


class Table(list[str]):
    """Iterates over the names of its columns, as tables do."""

    columns = ("text", "label")


@pytest.mark.case(51)
@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"text": "a film", "text_pair": "the sea"}, "not a dict"),
        (Table(("text", "label")), "not a Table"),
        (b"a film", "not one text"),
        (bytearray(b"a film"), "not one text"),
        ([{"text": "a film"}], "not a dict"),
        (np.array([["a", "b"], ["c", "d"]]), "not a ndarray"),
    ],
)
def test_what_has_other_elements_than_texts_is_refused(
    encoder: Encoder, given: Any, what: str
) -> None:
    with pytest.raises(ValidationError, match=what):
        encoder.classify(given)


def test_numbers_that_are_not_whole_are_refused(encoder: Encoder) -> None:
    with pytest.raises(ValidationError, match=r"top_k must be at least 1.*1\.5"):
        encoder.classify(["a"], top_k=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match=r"`stride` is 2\.5"):
        encoder.classify(["a"], stride=2.5)  # type: ignore[arg-type]
    assert len(encoder.classify(["a"], top_k=np.int64(2))[0]) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_an_encoder_says_why_it_cannot_be_sent_elsewhere(
    encoder: Encoder, copied: Callable[[Any], Any]
) -> None:
    with pytest.raises(TypeError, match="other processes make their own"):
        copied(encoder)
