"""What a command does with rows: which columns it reads and adds, and how it asks the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from packhorse.checkpoint import Checkpoint
from packhorse.request import BoolArray, Sequences, TextOrPair
from packhorse.tools.table_files.added_columns import AddedColumn
from packhorse.tools.table_files.columns import Columns

if TYPE_CHECKING:
    from packhorse.loaded import Loaded
    from packhorse.verbs import Plan


class RowTask(Protocol):
    """One task with its options.

    columns          that are read and added
    sequences_each   about how many sequences the model sees for a row
    """

    @property
    def columns(self) -> Columns: ...

    @property
    def sequences_each(self) -> int: ...

    def identity(self) -> dict[str, Any]:
        """The task and every option of it that the output depends on, as JSON."""

    def added(self, checkpoint: Checkpoint) -> list[AddedColumn]:
        """The columns that rows get. Raises RequestError where the model does not fit."""

    def plan(self, model: Loaded, texts: list[TextOrPair]) -> Plan[Any]:
        """How the model is asked for N rows. Raises RequestError for a row that it refuses."""

    def values(self, result: Any, checkpoint: Checkpoint) -> list[Any]:
        """The plan's result for N rows as the values of each added column."""

    def truncated(self, sequences: Sequences, rows: int) -> BoolArray:
        """Which of N rows have a text that was cut, bool (N,)."""


def truncated_rows(sequences: Sequences, rows: int, stride: int | None) -> BoolArray:
    """The same where a row is one sequence, or with ``stride`` windows that leave nothing out."""
    return sequences.truncated if stride is None else np.zeros(rows, np.bool_)
