"""From batches of rows to ranked labels, with every row that fails taken out alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from packhorse.checkpoint import Checkpoint
from packhorse.errors import InternalError, NonFiniteOutputError, RequestError, ServedError
from packhorse.postprocess import scores_of
from packhorse.request import Float32Array, Sequences, TextOrPair, concatenate
from packhorse.tokenizing.tokenizer import Direction
from packhorse.tools.table_files.rows import Ranking, RowBatch


class Model(Protocol):
    """What is needed of ``packhorse.Encoder``."""

    def encode(
        self, inputs: list[TextOrPair], *, truncate: bool, truncation_direction: Direction
    ) -> Sequences: ...

    def logits(self, sequences: Sequences) -> Float32Array: ...


@dataclass(frozen=True, slots=True)
class Scoring:
    """How texts become labels.

    top_k      how many labels a row gets, best first; None for all
    direction  the side that is cut off a text that is too long
    """

    top_k: int | None = 1
    raw_scores: bool = False
    truncate: bool = True
    direction: Direction = "right"


@dataclass(frozen=True, slots=True)
class Encoded:
    """A batch and its N tokenised rows; None where no row is left."""

    batch: RowBatch
    sequences: Sequences | None


@dataclass(frozen=True, slots=True)
class Scored:
    """A batch and the ranking of its rows. ``truncated`` counts the rows that were cut."""

    batch: RowBatch
    ranking: Ranking
    truncated: int


class RowScorer:
    """Asks one model. ``encoded`` and ``score`` may run in different threads."""

    def __init__(self, model: Model, checkpoint: Checkpoint, scoring: Scoring) -> None:
        self._model = model
        self._first_position = checkpoint.architecture.first_position
        self._problem_type = checkpoint.problem_type
        self._num_labels = len(checkpoint.labels)
        self._scoring = scoring

    def encoded(self, batches: Iterable[RowBatch]) -> Iterator[Encoded]:
        """Tokenise each batch; rows that cannot be tokenised become bad rows."""
        for batch in batches:
            yield self._encode(batch)

    def score(self, encoded: Encoded) -> Scored:
        """Run the model. Rows without a finite answer become bad rows.

        Raises InternalError when the model gives no answers any more, whatever the row.
        """
        batch, sequences = encoded.batch, encoded.sequences
        if sequences is None:
            return Scored(batch, _EMPTY, 0)
        logits, faults = self._logits(sequences)
        good = np.ones(len(sequences), np.bool_)
        good[list(faults)] = False
        ranking = self._ranking(logits[good])
        return Scored(batch.without(faults), ranking, int(sequences.truncated[good].sum()))

    def _encode(self, batch: RowBatch) -> Encoded:
        faults: dict[int, str] = {}
        parts = list(self._encoded_parts(batch.texts, 0, faults))
        sequences = concatenate(parts, self._first_position) if parts else None
        return Encoded(batch.without(faults), sequences)

    def _encoded_parts(
        self, texts: list[TextOrPair], first: int, faults: dict[int, str]
    ) -> Iterator[Sequences]:
        """All texts at once, or by halves where one of them is refused."""
        if not texts:
            return
        try:
            yield self._model.encode(
                texts,
                truncate=self._scoring.truncate,
                truncation_direction=self._scoring.direction,
            )
        except RequestError as error:
            if len(texts) == 1:
                faults[first] = _reason(error)
                return
            middle = len(texts) // 2
            yield from self._encoded_parts(texts[:middle], first, faults)
            yield from self._encoded_parts(texts[middle:], first + middle, faults)

    def _logits(self, sequences: Sequences) -> tuple[Float32Array, dict[int, str]]:
        """float32 (N, labels), and the rows among them that have no answer, with the reason."""
        try:
            return self._model.logits(sequences), {}
        except (InternalError, NonFiniteOutputError):
            self._check_alive()
        logits = np.zeros((len(sequences), self._num_labels), np.float32)
        faults: dict[int, str] = {}
        self._fill(logits, sequences, 0, faults)
        self._check_alive()  # one of the rows may have been its end
        return logits, faults

    def _fill(
        self, logits: Float32Array, sequences: Sequences, first: int, faults: dict[int, str]
    ) -> None:
        """Put in the logits of all sequences, by halves where one of them has none."""
        count = len(sequences)
        try:
            logits[first : first + count] = self._model.logits(sequences)
        except (InternalError, NonFiniteOutputError) as error:
            if count == 1:
                faults[first] = _reason(error)
                return
            middle = count // 2
            self._fill(logits, sequences.slice(0, middle), first, faults)
            self._fill(logits, sequences.slice(middle, count), first + middle, faults)

    def _check_alive(self) -> None:
        """Raise InternalError unless the model can answer at all: then the rows are at fault."""
        sequences = self._model.encode(["a"], truncate=True, truncation_direction="right")
        self._model.logits(sequences)

    def _ranking(self, logits: Float32Array) -> Ranking:
        scores = logits
        if not self._scoring.raw_scores and len(logits):
            scores = scores_of(logits, self._problem_type)
        if self._scoring.top_k == 1:
            order = scores.argmax(axis=1)[:, np.newaxis]
        else:
            order = np.argsort(-scores, axis=1, kind="stable")[:, : self._scoring.top_k]
        return Ranking(order, np.take_along_axis(scores, order, axis=1))


_EMPTY = Ranking(np.empty((0, 1), np.intp), np.empty((0, 1), np.float32))


def _reason(error: ServedError) -> str:
    """What the error says, but for the index of the input: it counts within what was asked."""
    return re.sub(r"^inputs?[ \[]\d+\]?:? ", "", str(error))
