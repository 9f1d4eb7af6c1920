"""``packhorse token-classify``: the entities of each text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from packhorse import verbs
from packhorse.checkpoint import Checkpoint
from packhorse.entities import Entity
from packhorse.request import BoolArray, Sequences, TextOrPair
from packhorse.tasks import Task
from packhorse.tools.files.row_task import truncated_rows
from packhorse.tools.table_files.added_columns import AddedColumn, EntitiesColumn
from packhorse.tools.table_files.columns import Columns

if TYPE_CHECKING:
    from packhorse.loaded import Loaded


@dataclass(frozen=True, slots=True)
class EntityTask:
    """entities        the added column
    aggregation     none, simple, first, average or max
    ignored         labels of entities that are left out
    stride          tokens that the windows of a long text share; None: it is cut
    """

    text: str
    entities: str
    aggregation: str
    ignored: tuple[str, ...] = ("O",)
    stride: int | None = None
    truncate: bool = True

    sequences_each = 1

    @property
    def columns(self) -> Columns:
        flags = "--prefix, or with --entities-column"
        return Columns((self.text,), (self.entities,), ("--text-column",), flags)

    def identity(self) -> dict[str, Any]:
        return {"task": "token-classify", **asdict(self)}

    def added(self, checkpoint: Checkpoint) -> list[AddedColumn]:
        verbs.require(checkpoint, Task.TOKEN_CLASSIFY)
        return [EntitiesColumn(self.entities, has_index=self.aggregation == "none")]

    def plan(self, model: Loaded, texts: list[TextOrPair]) -> verbs.Plan[list[list[Entity]]]:
        return verbs.token_classify(
            model,
            cast(list[str], texts),
            self.aggregation,
            self.ignored,
            self.stride,
            self.truncate,
        )

    def values(self, result: list[list[Entity]], checkpoint: Checkpoint) -> list[Any]:
        return [result]

    def truncated(self, sequences: Sequences, rows: int) -> BoolArray:
        return truncated_rows(sequences, rows, self.stride)
