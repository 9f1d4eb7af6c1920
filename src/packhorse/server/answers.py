"""From the parts of an answered request to its rows, in the order of its inputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from packhorse.errors import NonFiniteOutputError
from packhorse.request import Answer, Part, answer_of, bounds_of
from packhorse.server.pending import Pending
from packhorse.server.scores import check_rows

_NON_FINITE = NonFiniteOutputError.code


def answer_in(pending: Pending, input_of: Sequence[int] | None = None) -> Answer:
    """The values of all inputs. Raises the error of the first that has none.

    ``input_of`` says of which input each sequence is, where an input is several.
    """
    inputs = len(pending.inputs) if input_of is None else int(input_of[-1]) + 1
    parts = []
    for block, offset, first, count in sorted(pending.parts, key=lambda part: part[1]):
        completions, own = block.completions, slice(first, first + count)
        if block.failed:
            check_rows(block, first, count, offset, inputs, input_of)
        row_counts, rows = completions.row_counts, own
        if row_counts is not None:
            bounds = bounds_of(row_counts)
            rows, row_counts = slice(bounds[first], bounds[first + count]), row_counts[own]
        parts.append(Part(offset, completions.values[rows], completions.codes[own], row_counts))
    return answer_of(parts)


def non_finite_in(pending: Pending) -> int:
    """Inputs of an answered request for which the model gave no number."""
    return sum(
        int(np.count_nonzero(block.completions.codes[first : first + count] == _NON_FINITE))
        for block, _, first, count in pending.parts
    )
