"""From an answer to JSON: scores with their labels, best first.

The rows of a message are written together, whatever requests they belong to:
one call of NumPy's for all of them, and a few bytes joined for each.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from packhorse.checkpoint import ProblemType
from packhorse.errors import SERVED_ERRORS, NonFiniteOutputError, QuarantinedError, ServedError
from packhorse.postprocess import scores_of
from packhorse.request import Float32Array
from packhorse.server.pending import Block, Pending

FEW_SCORES = 32
"""So few are sorted by Python sooner than NumPy's calls return."""

_encode = msgspec.json.Encoder().encode


def most_bytes(labels: tuple[str, ...]) -> int:
    """Of what a ``ScoreWriter`` writes for one row, of scores and of raw ones: each at most."""
    longest = len(b'{"score":-1.7976931348623157e+308,"label":},')
    return 2 * sum(longest + len(_encode(label)) for label in labels)


class ScoreWriter:
    """Writes rows of logits for one model's labels."""

    def __init__(self, labels: tuple[str, ...], problem_type: ProblemType) -> None:
        self._problem_type = problem_type
        self._tails = [b',"label":' + _encode(label) + b"}" for label in labels]

    def rows(self, pending: Pending, raw: bool) -> list[bytes]:
        """One JSON list for each input, in the order of the inputs: [{"score":…,"label":…},…].

        Raises the error of the first input that has no scores.
        """
        parts = pending.parts
        if len(parts) > 1:
            parts.sort(key=lambda part: part[1])  # batches may finish in another order
        rows: list[bytes] = []
        for block, _, first, count in parts:
            if block.failed:
                check_rows(block, first, count, len(rows), pending.count)
            written = block.written.get(raw)
            if written is None:
                written = block.written[raw] = self._write(block, raw)
            rows += written[first : first + count]
        return rows

    def _write(self, block: Block, raw: bool) -> list[bytes]:
        logits = block.completions.values
        if block.failed:  # those rows are not read; they may hold NaN
            logits = np.where(block.completions.codes[:, None] == 0, logits, np.float32(0))
        return self.written(self.scores(logits, raw))

    def scores(self, logits: Float32Array, raw: bool) -> Float32Array:
        """What is written of logits, float32 (n, labels)."""
        return logits if raw else scores_of(logits, self._problem_type)

    def written(self, scores: Float32Array) -> list[bytes]:
        """One JSON list for each row of scores, float32 (n, labels)."""
        order, ordered = _ranked(scores)
        # A float32 as the float64 of the same value: its shortest digits are exact, and quick.
        numbers = iter(_encode(ordered)[1:-1].split(b","))
        tails = self._tails
        return [
            b"["
            + b",".join([b'{"score":' + next(numbers) + tails[label] for label in labels])
            + b"]"
            for labels in order
        ]


def _ranked(scores: Float32Array) -> tuple[list[list[int]], list[float]]:
    """The labels of each row, best first and in their own order where equal; all scores in it."""
    if scores.size > FEW_SCORES:
        order = np.argsort(-scores, axis=1, kind="stable")
        return order.tolist(), np.take_along_axis(scores, order, axis=1).ravel().tolist()
    rows = scores.tolist()
    ranks = [sorted(range(len(row)), key=row.__getitem__, reverse=True) for row in rows]
    return ranks, [row[label] for row, labels in zip(rows, ranks, strict=True) for label in labels]


def check_rows(
    block: Block,
    first: int,
    count: int,
    index: int,
    inputs: int,
    input_of: Sequence[int] | None = None,
) -> None:
    """Raise the error of the first of these rows that failed, naming its input if there are more.

    index     of the first of these rows in the request
    input_of  the input that each row of the request is of; None: its own
    """
    codes = block.completions.codes[first : first + count]
    if codes.any():
        failed = int(codes.argmax())
        kind = SERVED_ERRORS[int(codes[failed])]
        number = index + failed if input_of is None else int(input_of[index + failed])
        where = f"`inputs[{number}]`: " if inputs > 1 else ""
        raise kind(where + _reason(kind))


def _reason(kind: type[ServedError]) -> str:
    if kind is NonFiniteOutputError:
        return "the model gave NaN or infinity for this input (non_finite_output)"
    if kind is QuarantinedError:
        return "the engine crashed twice while it computed this input, which is refused from now on"
    return "the forward pass failed for this input"
