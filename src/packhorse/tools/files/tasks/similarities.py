"""``packhorse similarity``: the cosine of two texts of each row, or of one text and each row."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from packhorse import embedding, verbs
from packhorse.checkpoint import Checkpoint
from packhorse.request import BoolArray, Float32Array, Sequences, TextOrPair
from packhorse.tools.table_files.added_columns import AddedColumn, ScoreColumn
from packhorse.tools.table_files.columns import Columns

if TYPE_CHECKING:
    from packhorse.loaded import Loaded


@dataclass(frozen=True, slots=True)
class SimilarityTask:
    """texts            the columns of the two texts, or of one alone
    score            the added column
    source_sentence  what all rows are compared with, where it is no column
    """

    texts: tuple[str, ...]
    score: str
    source_sentence: str | None = None
    prompt_name: str | None = None

    @property
    def columns(self) -> Columns:
        flags = ("--text-column", "--pair-column")
        return Columns(self.texts, (self.score,), flags, "--prefix, or with --score-column")

    @property
    def sequences_each(self) -> int:
        return len(self.texts)

    def identity(self) -> dict[str, Any]:
        return {"task": "similarity", **asdict(self)}

    def added(self, checkpoint: Checkpoint) -> list[AddedColumn]:
        embedding.sentence_of(checkpoint).prompt_named(self.prompt_name)
        return [ScoreColumn(self.score)]

    def plan(self, model: Loaded, texts: list[TextOrPair]) -> verbs.Plan[Float32Array]:
        if self.source_sentence is None:
            pairs = cast(list[tuple[str, str]], texts)
            return embedding.pair_similarities(model, pairs, self.prompt_name)
        others = cast(list[str], texts)
        return embedding.similarity(model, [self.source_sentence], others, self.prompt_name)

    def values(self, result: Float32Array, checkpoint: Checkpoint) -> list[Any]:
        return [result.reshape(-1)]

    def truncated(self, sequences: Sequences, rows: int) -> BoolArray:
        if self.source_sentence is not None:
            return sequences.truncated[1:]
        cut: BoolArray = np.logical_or.reduce(sequences.truncated.reshape(rows, -1), axis=1)
        return cut
