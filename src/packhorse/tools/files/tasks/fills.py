"""``packhorse fill-mask``: the likeliest tokens for each mask of each text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from packhorse import verbs
from packhorse.checkpoint import Checkpoint
from packhorse.request import BoolArray, Sequences, TextOrPair
from packhorse.tasks import Task
from packhorse.tokenizing.masks import Fills, first_masks
from packhorse.tokenizing.safe_cuts import Direction
from packhorse.tools.table_files.added_columns import AddedColumn, FillsColumn
from packhorse.tools.table_files.columns import Columns

if TYPE_CHECKING:
    from packhorse.loaded import Loaded


@dataclass(frozen=True, slots=True)
class FillTask:
    """``fills`` is the added column; the others are those of ``Encoder.fill_mask``."""

    text: str
    fills: str
    top_k: int = 5
    targets: tuple[str, ...] | None = None
    truncate: bool = True
    direction: Direction | None = None

    sequences_each = 8  # so few rows at once that the logits of their masks fit into memory

    @property
    def columns(self) -> Columns:
        flags = "--prefix, or with --fills-column"
        return Columns((self.text,), (self.fills,), ("--text-column",), flags)

    def identity(self) -> dict[str, Any]:
        return {"task": "fill-mask", **asdict(self)}

    def added(self, checkpoint: Checkpoint) -> list[AddedColumn]:
        verbs.require(checkpoint, Task.FILL_MASK)
        return [FillsColumn(self.fills)]

    def plan(self, model: Loaded, texts: list[TextOrPair]) -> verbs.Plan[list[Fills]]:
        return verbs.fill_mask(
            model,
            cast(list[str], texts),
            self.top_k,
            self.targets,
            self.truncate,
            self.direction,
        )

    def values(self, result: list[Fills], checkpoint: Checkpoint) -> list[Any]:
        return [result]

    def truncated(self, sequences: Sequences, rows: int) -> BoolArray:
        return sequences.truncated[first_masks(sequences)]
