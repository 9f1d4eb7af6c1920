"""What rivals at their best have in common: one call to the tokenizer, batches sorted by length."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from packhorse.checkpoint import load_checkpoint
from packhorse.postprocess import scores_of
from packhorse.request import Float32Array, Int32Array
from packhorse.tools.bench.flops import ModelSize, padded
from packhorse.tools.bench.programs import Place

ROWS = 32
"""Texts a batch unless tuned."""

CHOICES = (16, 32, 64)
"""Texts a batch that are tried."""

TUNING_TEXTS = 256
"""Texts that each choice is timed with."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts of similar length, padded to the longest.

    rows        int (n,): which of the texts they are
    ids, mask   int64 (n, width): token ids, and 1 where one is real
    is_padded   whether any is not
    """

    rows: NDArray[np.intp]
    ids: NDArray[np.int64]
    mask: NDArray[np.int64]

    @property
    def is_padded(self) -> bool:
        return not self.mask.all()


class PaddedProgram(ABC):
    """Strings in, scores out; a library's part is ``run``."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.dtype = place.dtype
        self.checkpoint = load_checkpoint(place.folder)
        self.tokenizer = Tokenizer.from_file(str(Path(place.folder) / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.checkpoint.max_length)
        self.pad = int(self.checkpoint.config.get("pad_token_id") or 0)
        self.rows = ROWS
        self.parts: list[str] = []

    @abstractmethod
    def run(self, batches: Sequence[Batch]) -> list[Float32Array]:
        """Logits (n, labels) of each batch."""

    @property
    def note(self) -> str:
        """What it is made with, and how many texts it takes at a time."""
        return "; ".join([*self.parts, f"{self.rows} texts a batch"])

    def tune(self, texts: list[str]) -> None:
        """Keep the fastest of CHOICES; each runs once unmeasured, since shapes are compiled."""
        seconds = {}
        for self.rows in CHOICES:
            self.predict(texts[:TUNING_TEXTS])
            started = time.perf_counter()
            self.predict(texts[:TUNING_TEXTS])
            seconds[self.rows] = time.perf_counter() - started
        self.rows = min(seconds, key=seconds.__getitem__)

    def predict(self, texts: list[str]) -> Float32Array:
        return scores_of(self.logits(texts), self.checkpoint.problem_type)

    def logits(self, texts: list[str]) -> Float32Array:
        encoded = [each.ids for each in self.tokenizer.encode_batch_fast(texts)]
        batches = list(padded_batches(encoded, self.rows, self.pad))
        results = self.run(batches)
        ordered = np.empty((len(texts), results[0].shape[1]), np.float32)
        for batch, logits in zip(batches, results, strict=True):
            ordered[batch.rows] = logits
        return ordered

    def executed_flops(self, size: ModelSize, lengths: Int32Array) -> int:
        order = np.argsort(-lengths, kind="stable")
        cuts = (order[i : i + self.rows] for i in range(0, len(order), self.rows))
        return sum(padded(size, len(rows), int(lengths[rows].max())) for rows in cuts)

    def close(self) -> None:
        """Nothing is held but memory, which goes with the process."""
        self.parts.clear()


def padded_batches(encoded: Sequence[Sequence[int]], rows: int, pad: int) -> Iterator[Batch]:
    """Batches of so many texts, long ones first: memory taken for those fits all others."""
    lengths = np.fromiter((len(ids) for ids in encoded), np.int32, len(encoded))
    order = np.argsort(-lengths, kind="stable")
    for first in range(0, len(order), rows):
        chosen = order[first : first + rows]
        width = int(lengths[chosen[0]])
        mask = np.arange(width) < lengths[chosen][:, None]
        ids = np.full(mask.shape, pad, np.int64)
        ids[mask] = np.concatenate([np.asarray(encoded[row], np.int64) for row in chosen])
        yield Batch(chosen, ids, mask.astype(np.int64))


CALIBRATION = "calibration.json"
"""In the scratch folder: texts that are not among those measured, for int8 by calibration."""


def calibration_texts(place: Place) -> list[str]:
    """Those that were put into the scratch folder."""
    assert place.scratch is not None
    texts: list[str] = json.loads((Path(place.scratch) / CALIBRATION).read_text("utf-8"))
    return texts
