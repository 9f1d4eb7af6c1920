"""``packhorse embed``: a vector for each text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from numpy.typing import NDArray

from packhorse import embedding, verbs
from packhorse.checkpoint import Checkpoint
from packhorse.request import BoolArray, Sequences, TextOrPair
from packhorse.tokenizing.safe_cuts import Direction
from packhorse.tools.files.row_task import truncated_rows
from packhorse.tools.table_files.added_columns import AddedColumn, VectorColumn
from packhorse.tools.table_files.columns import Columns
from packhorse.vectors import OutputType, checked_dimensions

if TYPE_CHECKING:
    from packhorse.loaded import Loaded


@dataclass(frozen=True, slots=True)
class VectorTask:
    """``embedding`` is the added column; the other options are those of ``Encoder.embed``."""

    text: str
    embedding: str
    prompt_name: str | None = None
    prompt: str | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    output_type: OutputType = "float32"
    truncate: bool = True
    direction: Direction | None = None
    stride: int | None = None

    sequences_each = 1

    @property
    def columns(self) -> Columns:
        flags = "--prefix, or with --embedding-column"
        return Columns((self.text,), (self.embedding,), ("--text-column",), flags)

    def identity(self) -> dict[str, Any]:
        return {"task": "embed", **asdict(self)}

    def added(self, checkpoint: Checkpoint) -> list[AddedColumn]:
        sentence = embedding.sentence_of(checkpoint)
        width = sentence.width
        if self.dimensions is not None:
            width = checked_dimensions(self.dimensions, width)
        if self.prompt is None:
            sentence.prompt_named(self.prompt_name)
        else:
            sentence.checked_prompt(self.prompt)
        if self.output_type in ("binary", "ubinary"):
            width = -(-width // 8)
        dtype = {"binary": "int8", "ubinary": "uint8"}.get(self.output_type, self.output_type)
        return [VectorColumn(self.embedding, dtype, width)]

    def plan(self, model: Loaded, texts: list[TextOrPair]) -> verbs.Plan[NDArray[Any]]:
        return embedding.embed(
            model,
            cast(list[str], texts),
            self.prompt_name,
            self.prompt,
            self.normalize,
            self.dimensions,
            self.output_type,
            self.truncate,
            self.direction,
            self.stride,
        )

    def values(self, result: NDArray[Any], checkpoint: Checkpoint) -> list[Any]:
        return [result]

    def truncated(self, sequences: Sequences, rows: int) -> BoolArray:
        return truncated_rows(sequences, rows, self.stride)
