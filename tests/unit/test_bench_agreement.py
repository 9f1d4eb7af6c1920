"""A rung that answers wrongly is found out, whatever the mistake."""

from __future__ import annotations

import numpy as np
import pytest

from packhorse.checkpoint import ProblemType
from packhorse.postprocess import scores_of
from packhorse.tools.bench.agreement import TOLERANCE, compare, compare_scores, spread_of

SINGLE = ProblemType.SINGLE_LABEL
REFERENCE = np.random.default_rng(0).standard_normal((200, 2)).astype(np.float32)
SPREAD = spread_of(REFERENCE)


def test_the_spread_is_that_between_texts() -> None:
    assert pytest.approx(1, abs=0.1) == SPREAD
    assert spread_of(np.full((9, 2), [3.0, -5.0], np.float32)) == 0


@pytest.mark.parametrize("dtype", sorted(TOLERANCE))
def test_small_errors_agree(dtype: str) -> None:
    noise = np.random.default_rng(1).standard_normal(REFERENCE.shape) * TOLERANCE[dtype] / 2
    found = compare(REFERENCE + noise, REFERENCE, SPREAD, dtype)
    assert found.fault is None
    assert found.rms_error == pytest.approx(TOLERANCE[dtype] / 2, rel=0.2)
    assert found.same_label > 0.9


def _shifted() -> np.ndarray:  # type: ignore[type-arg]
    return REFERENCE + np.float32(0.5)


def _one_wrong() -> np.ndarray:  # type: ignore[type-arg]
    answers = REFERENCE.copy()
    answers[17, 1] += 1
    return answers


def _swapped() -> np.ndarray:  # type: ignore[type-arg]
    return np.roll(REFERENCE, 1, axis=0)


def _not_finite() -> np.ndarray:  # type: ignore[type-arg]
    answers = REFERENCE.copy()
    answers[3] = np.nan
    return answers


def _one_missing() -> np.ndarray:  # type: ignore[type-arg]
    return REFERENCE[:-1]


@pytest.mark.parametrize("dtype", sorted(TOLERANCE))
@pytest.mark.parametrize("wrong", [_shifted, _one_wrong, _swapped, _not_finite, _one_missing])
def test_wrong_logits_are_a_fault(wrong, dtype: str) -> None:  # type: ignore[no-untyped-def]
    if dtype == "int8" and wrong is _one_wrong:
        pytest.skip("one answer of 200 that is off by a spread is within what int8 may cost")
    assert compare(wrong(), REFERENCE, SPREAD, dtype).fault is not None


def test_errors_that_are_no_numbers_are_none() -> None:
    found = compare(_not_finite(), REFERENCE, SPREAD, "float32")
    assert found.max_error is None
    assert found.rms_error is None


def test_scores_of_a_timed_round() -> None:
    scores = scores_of(REFERENCE, SINGLE)
    assert compare_scores(scores, REFERENCE, SINGLE, SPREAD, "float32") == (0.0, None)
    assert compare_scores(scores[:, 1].tolist(), REFERENCE, SINGLE, SPREAD, "float32")[1] is None


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_wrong_scores_of_a_timed_round(dtype: str) -> None:
    scores = scores_of(REFERENCE, SINGLE)
    for wrong in (scores[:, ::-1], np.roll(scores, 1, axis=0), scores[:-1], scores * np.nan):
        assert compare_scores(wrong, REFERENCE, SINGLE, SPREAD, dtype)[1] is not None
    positive = scores[:, 0].tolist()  # the wrong column
    assert compare_scores(positive, REFERENCE, SINGLE, SPREAD, dtype)[1] is not None
