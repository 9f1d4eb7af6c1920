"""Whether a rung answers like the reference: the fastest wrong program wins nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.checkpoint import ProblemType
from packhorse.postprocess import scores_of
from packhorse.request import Float32Array

TOLERANCE = {"float32": 0.003, "float16": 0.02, "bfloat16": 0.15, "int8": 0.45}
"""The largest RMS error of logits, relative to their spread between texts; a single logit may be
off by three times that. float16 keeps 11 bits and bfloat16 8, so errors of the one are an eighth
of the other's; answers given to the wrong text are off by 1.4 spreads. What int8 costs depends on
the model and on the calibration: its bound only finds programs that are broken."""

ROUNDING = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3, "int8": 8e-3}
"""Of a probability in that type, whose programs compute the softmax in it."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of one rung on one workload, against float32.

    texts        that were compared
    max_error, rms_error   of all logits
    spread       of the reference: standard deviation of a logit between texts, RMS over labels
    same_label   share of texts with the same best label
    score_error  largest difference of a score in any timed round
    fault        what is wrong; None: it agrees

    An error is None where it is no number.
    """

    texts: int
    max_error: float | None
    rms_error: float | None
    spread: float
    same_label: float
    score_error: float | None = None
    fault: str | None = None


def spread_of(logits: Float32Array) -> float:
    """RMS over labels of the standard deviation between texts."""
    return float(np.sqrt(logits.var(axis=0, dtype=np.float64).mean()))


def compare(logits: NDArray[Any], reference: Float32Array, spread: float, dtype: str) -> Agreement:
    """Logits (N, labels) against the reference's, in the same order."""
    if logits.shape != reference.shape:
        shape_fault = f"answers of shape {logits.shape} instead of {reference.shape}"
        return Agreement(len(reference), None, None, spread, 0.0, fault=shape_fault)
    error = logits.astype(np.float64) - reference
    largest, rms = float(np.abs(error).max()), float(np.sqrt((error * error).mean()))
    same = float((logits.argmax(axis=1) == reference.argmax(axis=1)).mean())
    allowed = TOLERANCE[dtype] * spread
    fault: str | None = None
    # Turned around, so that NaN is a fault.
    if not rms <= allowed:
        fault = f"RMS error of logits {rms:.2g}, more than {allowed:.2g} for {dtype}"
    elif not largest <= 3 * allowed:
        fault = f"a logit is off by {largest:.2g}, more than {3 * allowed:.2g} for {dtype}"
    return Agreement(len(reference), _number(largest), _number(rms), spread, same, fault=fault)


def compare_scores(
    scores: Float32Array | list[float],
    reference: Float32Array,
    problem_type: ProblemType,
    spread: float,
    dtype: str,
) -> tuple[float | None, str | None]:
    """The largest difference of the scores of a timed round, and what is wrong with it.

    A logit off by e moves no softmax or sigmoid by more than e / 2, as both
    have derivatives of at most that in the largest norm.
    """
    expected = scores_of(reference, problem_type)
    if isinstance(scores, list):
        given, expected = np.array(scores, np.float32), expected[:, 1]
    else:
        given = scores
    if given.shape != expected.shape:
        return None, f"scores of shape {given.shape} instead of {expected.shape}"
    largest = float(np.abs(given.astype(np.float64) - expected).max())
    factor = 1.0 if problem_type is ProblemType.REGRESSION else 0.5
    allowed = factor * 3 * TOLERANCE[dtype] * spread + ROUNDING[dtype]
    if not largest <= allowed:
        return _number(
            largest
        ), f"a score is off by {largest:.2g}, more than {allowed:.2g} for {dtype}"
    return largest, None


def _number(value: float) -> float | None:
    """None for NaN and infinity, which JSON has not."""
    return value if np.isfinite(value) else None
