"""``packhorse classify``: the labels of a classifier for each text or pair."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from packhorse import verbs
from packhorse.checkpoint import Checkpoint
from packhorse.request import BoolArray, Float32Array, Sequences, TextOrPair
from packhorse.tasks import Task
from packhorse.tokenizing.safe_cuts import Direction
from packhorse.tools.files.row_task import truncated_rows
from packhorse.tools.files.tasks.ranked_labels import RankedLabels
from packhorse.tools.table_files.added_columns import AddedColumn
from packhorse.tools.table_files.columns import Columns

if TYPE_CHECKING:
    from packhorse.loaded import Loaded


@dataclass(frozen=True, slots=True)
class LabelTask:
    """``texts`` are one column or two; ``direction`` is the side that is cut off a long text.

    ``stride`` is how many tokens the windows of a long text share; None: it is cut.
    """

    texts: tuple[str, ...]
    ranked: RankedLabels
    raw_scores: bool = False
    truncate: bool = True
    direction: Direction | None = None
    stride: int | None = None

    sequences_each = 1

    @property
    def columns(self) -> Columns:
        flags = ("--text-column", "--pair-column")
        return Columns(self.texts, tuple(self.ranked.names()), flags, self.ranked.TOLD_BY)

    def identity(self) -> dict[str, Any]:
        own = asdict(self)
        del own["ranked"]
        return {"task": "classify", **own, **self.ranked.identity()}

    def added(self, checkpoint: Checkpoint) -> list[AddedColumn]:
        verbs.require(checkpoint, Task.CLASSIFY, Task.RERANK)
        return self.ranked.columns(checkpoint.labels)

    def plan(self, model: Loaded, texts: list[TextOrPair]) -> verbs.Plan[Float32Array]:
        return verbs.label_matrix(
            model, texts, self.raw_scores, self.truncate, self.direction, self.stride
        )

    def values(self, result: Float32Array, checkpoint: Checkpoint) -> list[Any]:
        return self.ranked.values(result, checkpoint.labels)

    def truncated(self, sequences: Sequences, rows: int) -> BoolArray:
        return truncated_rows(sequences, rows, self.stride)
