"""From logits to scores, as Transformers' text-classification pipeline does it. NumPy only."""

from __future__ import annotations

import numpy as np

from packhorse.checkpoint import ProblemType
from packhorse.request import Float32Array


def scores_of(logits: Float32Array, problem_type: ProblemType) -> Float32Array:
    """Scores, float32 (N, labels), from logits of the same shape.

    Softmax over the labels, a sigmoid for each label, or the logit itself,
    computed in float32 on shifted logits so that nothing overflows. The rule
    is that of the pipeline: huggingface/transformers, pipelines/text_classification.py.
    """
    if problem_type is ProblemType.REGRESSION:
        return logits
    if problem_type is ProblemType.MULTI_LABEL:
        return sigmoid(logits)
    return softmax(logits)


def softmax(logits: Float32Array) -> Float32Array:
    """Over the last axis; what is not finite stays in its own row."""
    shifted: Float32Array = np.exp(logits - logits.max(axis=-1, keepdims=True))
    scores: Float32Array = shifted / shifted.sum(axis=-1, keepdims=True)
    return scores


def sigmoid(x: Float32Array) -> Float32Array:
    """1 / (1 + exp(-x)) without overflow for large negative x."""
    small = np.exp(-np.abs(x))
    return (np.where(x >= 0, np.float32(1), small) / (np.float32(1) + small)).astype(np.float32)
