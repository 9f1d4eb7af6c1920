"""What Transformers answers: texts of equal length together, so nothing is padded or masked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from packhorse.request import Float32Array, TextOrPair
from packhorse.tools.bench.fidelity.subjects import Subject

ROWS = 128
"""Most texts that are computed together."""

Rows = tuple[list[int], dict[str, Tensor]]
"""Which inputs, and their ids and segments, each int64 (rows, length)."""


def tokenised(folder: Path, inputs: Sequence[TextOrPair]) -> list[Rows]:
    """By the tokenizer that Transformers takes for this checkpoint."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    if isinstance(inputs[0], str):
        encoded = tokenizer(list(inputs), return_attention_mask=False)
    else:
        firsts, seconds = zip(*inputs, strict=True)
        encoded = tokenizer(list(firsts), list(seconds), return_attention_mask=False)
    return [
        (
            rows,
            {name: torch.tensor([values[row] for row in rows]) for name, values in encoded.items()},
        )
        for rows in _of_equal_length([len(ids) for ids in encoded["input_ids"]])
    ]


def answers(
    subject: Subject, folder: Path, batches: Sequence[Rows], device: str, dtype: str
) -> Float32Array:
    """What its model in this type says to each input, float32: (inputs, width).

    Where each token has a row, those of an input lie one after the other.
    """
    model: Any = getattr(transformers, subject.model_class).from_pretrained(
        folder, dtype=getattr(torch, dtype)
    )
    model.to(device).eval()
    found: dict[int, Float32Array] = {}
    at_once = subject.problem.at_once
    with torch.inference_mode():
        for rows, tensors in batches:
            for first in range(0, len(rows), at_once):
                own = slice(first, first + at_once)
                moved = {name: tensor[own].to(device) for name, tensor in tensors.items()}
                values = subject.problem.theirs(model(**moved)).float().cpu().numpy()
                found |= dict(zip(rows[own], values, strict=True))
    ordered = [np.atleast_2d(found[row]) for row in range(len(found))]
    return np.concatenate(ordered)


def _of_equal_length(lengths: Sequence[int]) -> Iterator[list[int]]:
    by_length = defaultdict(list)
    for row, length in enumerate(lengths):
        by_length[length].append(row)
    for rows in by_length.values():
        for first in range(0, len(rows), ROWS):
            yield rows[first : first + ROWS]
