"""Classification by labels that the model has never seen, through natural-language inference.

The rules are those of Transformers' pipeline (pipelines/zero_shot_classification.py; Yin et al.
2019, arXiv:1909.00161): each label becomes a hypothesis, and its score is how far the text entails
it. NumPy only.
"""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.errors import TaskError, ValidationError
from packhorse.postprocess import softmax
from packhorse.request import Float32Array

TEMPLATE = "This example is {}."


def hypotheses(labels: Sequence[str], template: str) -> list[str]:
    """A sentence for each label. Raises ValidationError."""
    if isinstance(labels, str) or not labels:
        raise ValidationError("give a list of at least one label")
    before, place, after = template.partition("{}")
    # Not ``format``: the template may be a client's, and "{:>999999999}" means a gigabyte there.
    if not place or any(brace in before + after for brace in "{}"):
        raise ValidationError("the hypothesis template must have one place for a label: {}")
    return [before + label + after for label in labels]


def entailment(labels: tuple[str, ...]) -> int:
    """Which of the model's labels says that the text entails the hypothesis.

    Raises TaskError for a model that was not made for inference.
    """
    for number, label in enumerate(labels):
        if label.lower().startswith("entail"):
            return number
    raise TaskError(
        "zero-shot classification needs a model of natural-language inference, and this one has "
        "no label that begins with 'entail'"
    )


def label_scores(logits: Float32Array, labels: tuple[str, ...], multi_label: bool) -> Float32Array:
    """A score for each hypothesis, float32 (texts, hypotheses), from (texts, hypotheses, labels).

    ``multi_label``, or a single hypothesis: entailment against contradiction for each by itself;
    else the entailments of all against each other.
    """
    entailed = entailment(labels)
    if multi_label or logits.shape[1] == 1:
        contradicted = -1 if entailed == 0 else 0
        return softmax(logits[..., [contradicted, entailed]])[..., 1]
    return softmax(logits[..., entailed])
