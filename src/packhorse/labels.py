"""The labels of a checkpoint's head, and how its logits become scores, by Transformers' rules."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from packhorse.config_values import is_integer, refusal

logger = logging.getLogger(__name__)


class ProblemType(StrEnum):
    """How logits become scores, in the words of Transformers' config.

    A config without ``problem_type`` gets what Transformers' text
    classification pipeline does: the softmax for two labels or more and, for
    one label, the sigmoid, which is MULTI_LABEL with a single label.
    """

    SINGLE_LABEL = "single_label_classification"  # softmax over labels
    MULTI_LABEL = "multi_label_classification"  # sigmoid for each label
    REGRESSION = "regression"  # the logit itself


def labels_of(config: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    """Names of the head's rows, by the rules of Transformers.

    ``id2label`` names them; ``num_labels``, if it says another number, wins
    and the names are LABEL_0, LABEL_1, …; two labels if neither is there. We
    are stricter in one thing: a gap in the ids is an error, not one that waits
    until the nameless label is predicted.
    """
    names = config.get("id2label")
    if names is None:
        names = {}
    elif not isinstance(names, dict) or not names:
        raise refusal(path, "id2label", names, 'an object such as {"0": "no", "1": "yes"}')
    count = config.get("num_labels", len(names) or 2)
    if not is_integer(count, 1):
        raise refusal(path, "num_labels", count, "a whole number of at least 1")
    if len(names) != count:
        if names:
            logger.warning(
                "%s: num_labels is %d, so the %d names of id2label are not used",
                path,
                count,
                len(names),
            )
        return tuple(f"LABEL_{row}" for row in range(count))
    return tuple(_named_rows(names, path))


def _named_rows(names: Mapping[str, Any], path: Path) -> list[str]:
    """The labels of ``id2label`` in the order of their ids: "10" comes after "9"."""
    try:
        by_row = {int(key): label for key, label in names.items()}
    except ValueError:
        raise refusal(path, "id2label", names, "whole numbers as keys") from None
    if sorted(by_row) != list(range(len(names))):
        raise refusal(path, "id2label", names, f"the keys 0 to {len(names) - 1}, each once")
    for label in by_row.values():
        # A number is what some data sets have for names.
        if not isinstance(label, (str, int)):
            raise refusal(path, "id2label", names, "strings as labels")
    return [str(by_row[row]) for row in range(len(names))]


def problem_type_of(config: Mapping[str, Any], num_labels: int, path: Path) -> ProblemType:
    """Which function makes scores, as Transformers' text classification pipeline decides it."""
    value = config.get("problem_type")
    if value is None:
        return ProblemType.MULTI_LABEL if num_labels == 1 else ProblemType.SINGLE_LABEL
    if value not in list(ProblemType):
        raise refusal(path, "problem_type", value, f"{', '.join(ProblemType)}, or null")
    if value == ProblemType.SINGLE_LABEL and num_labels == 1:
        # The softmax of one number is 1.0 whatever the text; Transformers refuses it too.
        raise refusal(path, "problem_type", value, "regression or null where there is one label")
    return ProblemType(value)
