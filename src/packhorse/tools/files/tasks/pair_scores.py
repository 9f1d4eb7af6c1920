"""``packhorse rerank``: how well each document answers its query."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from packhorse import verbs
from packhorse.checkpoint import Checkpoint
from packhorse.request import BoolArray, Float32Array, Sequences, TextOrPair
from packhorse.tasks import Task
from packhorse.tokenizing.safe_cuts import Direction
from packhorse.tools.table_files.added_columns import AddedColumn, ScoreColumn
from packhorse.tools.table_files.columns import Columns

if TYPE_CHECKING:
    from packhorse.loaded import Loaded


@dataclass(frozen=True, slots=True)
class PairScoreTask:
    """texts  the columns of query and document, or that of the document alone
    score  the added column
    query  of all rows, where it is no column
    """

    texts: tuple[str, ...]
    score: str
    query: str | None = None
    raw_scores: bool = False
    truncate: bool = True
    direction: Direction | None = None

    sequences_each = 1

    @property
    def columns(self) -> Columns:
        flags = ("--text-column", "--query-column")
        return Columns(self.texts, (self.score,), flags, "--prefix, or with --score-column")

    def identity(self) -> dict[str, Any]:
        return {"task": "rerank", **asdict(self)}

    def added(self, checkpoint: Checkpoint) -> list[AddedColumn]:
        verbs.require(checkpoint, Task.RERANK)
        return [ScoreColumn(self.score)]

    def plan(self, model: Loaded, texts: list[TextOrPair]) -> verbs.Plan[Float32Array]:
        pairs = texts if self.query is None else [(self.query, text) for text in texts]
        return verbs.pair_scores(
            model,
            cast(list[tuple[str, str]], pairs),
            self.raw_scores,
            self.truncate,
            self.direction,
        )

    def values(self, result: Float32Array, checkpoint: Checkpoint) -> list[Any]:
        return [result]

    def truncated(self, sequences: Sequences, rows: int) -> BoolArray:
        return sequences.truncated
