"""From batches of rows to what the model says of them; a row that fails is taken out alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from packhorse.errors import InternalError, NonFiniteOutputError, RequestError, ServedError
from packhorse.request import Sequences, TextOrPair, joined
from packhorse.tools.files.row_task import RowTask
from packhorse.tools.table_files.rows import RowBatch

if TYPE_CHECKING:
    from packhorse.loaded import Loaded
    from packhorse.verbs import Plan


@dataclass(frozen=True, slots=True)
class Encoded:
    """A batch, and how the model is asked; both are None where no row is left."""

    batch: RowBatch
    plan: Plan[Any] | None = None
    sequences: Sequences | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """A batch and the values of its added columns. ``truncated`` counts the rows that were cut."""

    batch: RowBatch
    added: list[Any]
    truncated: int


class RowAnswers:
    """Asks one model. ``encoded`` and ``answered`` may run in different threads."""

    def __init__(self, model: Loaded, task: RowTask) -> None:
        self._model = model
        self._task = task

    def encoded(self, batches: Iterable[RowBatch]) -> Iterator[Encoded]:
        """Tokenise each batch; rows that cannot be tokenised become bad rows."""
        for batch in batches:
            yield self._encode(batch)

    def answered(self, encoded: Encoded) -> Answered:
        """Run the model. Rows without a finite answer become bad rows.

        Raises InternalError when the model gives no answers any more, whatever the row.
        """
        batch, plan, sequences = encoded.batch, encoded.plan, encoded.sequences
        if plan is None or sequences is None:
            return Answered(batch, [], 0)
        cut = self._task.truncated(sequences, len(batch))
        try:
            added = self._values(plan, sequences)
        except (InternalError, NonFiniteOutputError):
            self._check_alive(batch.texts[0])
        else:
            return Answered(batch, added, int(cut.sum()))
        faults: dict[int, str] = {}
        pieces = list(self._answered_parts(batch.texts, 0, faults))
        self._check_alive(batch.texts[0])  # one of the rows may have been its end
        good = np.ones(len(batch), np.bool_)
        good[list(faults)] = False
        return Answered(batch.without(faults), _rows_of(pieces), int(cut[good].sum()))

    def _encode(self, batch: RowBatch) -> Encoded:
        if not len(batch):
            return Encoded(batch)
        try:
            return Encoded(batch, *self._planned(batch.texts))
        except RequestError:
            faults: dict[int, str] = {}
            self._find_refused(batch.texts, 0, faults)
        left = batch.without(faults)
        return Encoded(left, *self._planned(left.texts)) if len(left) else Encoded(left)

    def _planned(self, texts: list[TextOrPair]) -> tuple[Plan[Any], Sequences]:
        plan = self._task.plan(self._model, texts)
        return plan, plan.encode(plan.inputs)

    def _find_refused(self, texts: list[TextOrPair], first: int, faults: dict[int, str]) -> None:
        """Note the texts that are refused, by halves."""
        try:
            self._planned(texts)
        except RequestError as error:
            if len(texts) == 1:
                faults[first] = _reason(error)
                return
            middle = len(texts) // 2
            self._find_refused(texts[:middle], first, faults)
            self._find_refused(texts[middle:], first + middle, faults)

    def _values(self, plan: Plan[Any], sequences: Sequences) -> list[Any]:
        answer = joined([self._model.engine.submit(sequences).result()])
        return self._task.values(plan.finish(answer), self._model.checkpoint)

    def _answered_parts(
        self, texts: list[TextOrPair], first: int, faults: dict[int, str]
    ) -> Iterator[list[Any]]:
        """The added columns of all rows, in parts: by halves where one of them has no answer."""
        try:
            yield self._values(*self._planned(texts))
        except (InternalError, NonFiniteOutputError) as error:
            if len(texts) == 1:
                faults[first] = _reason(error)
                return
            middle = len(texts) // 2
            yield from self._answered_parts(texts[:middle], first, faults)
            yield from self._answered_parts(texts[middle:], first + middle, faults)

    def _check_alive(self, like: TextOrPair) -> None:
        """Raise InternalError unless the model can answer at all: then the rows are at fault."""
        one: TextOrPair = "a" if isinstance(like, str) else ("a", "a")
        joined([self._model.engine.submit(self._model.tokenizer.encode([one])).result()])


def _rows_of(pieces: Sequence[list[Any]]) -> list[Any]:
    """The columns of all pieces, one below the other: each column is an array or a list."""
    return [
        np.concatenate(parts)
        if isinstance(parts[0], np.ndarray)
        else [value for part in parts for value in part]
        for parts in zip(*pieces, strict=True)
    ]


def _reason(error: ServedError) -> str:
    """What the error says, but for the index of the input: it counts within what was asked."""
    return re.sub(r"^inputs?[ \[]\d+\]?:? ", "", str(error))
