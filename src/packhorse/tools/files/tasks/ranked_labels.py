"""The best labels of each row and their scores, as columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from packhorse.errors import ConfigError
from packhorse.request import Float32Array
from packhorse.tools.table_files.added_columns import (
    AddedColumn,
    LabelColumn,
    LabelsColumn,
    ScoreColumn,
    ScoresColumn,
)


@dataclass(frozen=True, slots=True)
class RankedLabels:
    """The columns of labels and scores.

    label, score  their names
    top_k         how many labels a row gets, best first; None for all
    in_lists      whether the format has lists; CSV has label_1, score_1, label_2, … instead
    """

    label: str
    score: str
    top_k: int | None = 1
    in_lists: bool = False

    TOLD_BY = "--prefix, or with --label-column and --score-column"

    def __post_init__(self) -> None:
        if self.label == self.score:
            raise ConfigError("--label-column and --score-column must have two names")

    def names(self, num_labels: int = 1) -> list[str]:
        """Of the columns; some may be missing while the number of labels is not known."""
        if self.top_k == 1 or self.in_lists:
            return [self.label, self.score]
        ranks = range(1, self._count(num_labels) + 1)
        return [f"{name}_{rank}" for rank in ranks for name in (self.label, self.score)]

    def identity(self) -> dict[str, Any]:
        """What of these options the output depends on."""
        return {
            "columns": [self.label, self.score],
            "top_k": self.top_k,
            "in_lists": self.in_lists,
        }

    def columns(self, labels: tuple[str, ...]) -> list[AddedColumn]:
        """The columns for a model with these labels."""
        names = self.names(len(labels))
        if self.in_lists and self.top_k != 1:
            return [LabelsColumn(names[0], labels), ScoresColumn(names[1])]
        return [
            ScoreColumn(name) if number % 2 else LabelColumn(name, labels)
            for number, name in enumerate(names)
        ]

    def values(self, scores: Float32Array, labels: tuple[str, ...]) -> list[Any]:
        """The values of the columns, from scores float32 (N, labels)."""
        if self.top_k == 1:
            order = scores.argmax(axis=1)[:, np.newaxis]
        else:
            order = np.argsort(-scores, axis=1, kind="stable")[:, : self.top_k]
        best = np.take_along_axis(scores, order, axis=1)
        names = np.array(labels, dtype=object)[order]
        if self.in_lists and self.top_k != 1:
            return [names.tolist(), best]
        columns: list[Any] = []
        for rank in range(order.shape[1]):
            columns += [names[:, rank].tolist(), best[:, rank]]
        return columns

    def _count(self, num_labels: int) -> int:
        return min(self.top_k or num_labels, num_labels)
