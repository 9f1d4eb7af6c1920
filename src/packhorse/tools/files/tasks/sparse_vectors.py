"""``packhorse embed-sparse``: SPLADE's weights for each text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from packhorse import embedding, verbs
from packhorse.checkpoint import Checkpoint
from packhorse.request import BoolArray, Sequences, TextOrPair
from packhorse.tasks import Task
from packhorse.tokenizing.safe_cuts import Direction
from packhorse.tools.files.row_task import truncated_rows
from packhorse.tools.table_files.added_columns import AddedColumn, SparseVectorColumn
from packhorse.tools.table_files.columns import Columns
from packhorse.vectors import SparseVector

if TYPE_CHECKING:
    from packhorse.loaded import Loaded


@dataclass(frozen=True, slots=True)
class SparseVectorTask:
    """``embedding`` is the added column; the others are those of ``Encoder.embed_sparse``."""

    text: str
    embedding: str
    prompt_name: str | None = None
    prompt: str | None = None
    truncate: bool = True
    direction: Direction | None = None

    sequences_each = 1

    @property
    def columns(self) -> Columns:
        flags = "--prefix, or with --embedding-column"
        return Columns((self.text,), (self.embedding,), ("--text-column",), flags)

    def identity(self) -> dict[str, Any]:
        return {"task": "embed-sparse", **asdict(self)}

    def added(self, checkpoint: Checkpoint) -> list[AddedColumn]:
        sentence = embedding.sentence_of(checkpoint, Task.EMBED_SPARSE)
        if self.prompt is None:
            sentence.prompt_named(self.prompt_name)
        return [SparseVectorColumn(self.embedding)]

    def plan(self, model: Loaded, texts: list[TextOrPair]) -> verbs.Plan[list[SparseVector]]:
        return embedding.embed_sparse(
            model,
            cast(list[str], texts),
            self.prompt_name,
            self.prompt,
            self.truncate,
            self.direction,
        )

    def values(self, result: list[SparseVector], checkpoint: Checkpoint) -> list[Any]:
        return [result]

    def truncated(self, sequences: Sequences, rows: int) -> BoolArray:
        return truncated_rows(sequences, rows, None)
