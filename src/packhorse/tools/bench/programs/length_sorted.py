"""Transformers at its best: sorted by length, padded to each batch's longest, SDPA, a half type."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from packhorse.request import Float32Array, Int32Array
from packhorse.tools.bench.flops import ModelSize, padded
from packhorse.tools.bench.programs import Place

ROWS = {"cpu": 32, "cuda": 128}
"""Texts a batch: what was fastest of a few on each kind of device."""


class LengthSorted:
    """``compiled`` puts ``torch.compile`` around the same model."""

    def __init__(self, place: Place, compiled: bool = False) -> None:
        self.dtype = place.dtype
        self.device = torch.device(place.device)
        self.tokenizer = AutoTokenizer.from_pretrained(place.folder)
        self.model = _best_attention(place)
        self.model.to(self.device).eval()
        self.forward = torch.compile(self.model, dynamic=True) if compiled else self.model
        self.rows = ROWS[self.device.type]
        self.longest = self.model.config.max_position_embeddings

    def predict(self, texts: list[str]) -> Float32Array:
        return self._ordered(texts, softmax=True)

    def logits(self, texts: list[str]) -> Float32Array:
        return self._ordered(texts, softmax=False)

    def executed_flops(self, size: ModelSize, lengths: Int32Array) -> int:
        return sum(
            padded(size, len(rows), int(lengths[rows].max())) for rows in self._batches(lengths)
        )

    def close(self) -> None:
        pass

    def _ordered(self, texts: list[str], softmax: bool) -> Float32Array:
        """Results of all batches in the order of the texts: one copy back at the end."""
        encoded = self.tokenizer(
            texts,
            truncation=True,
            max_length=self.longest,
            return_attention_mask=False,
            return_token_type_ids=False,
        )["input_ids"]
        lengths = np.array([len(ids) for ids in encoded], np.int32)
        batches = list(self._batches(lengths))
        with torch.inference_mode():
            parts = [self._forward([encoded[row] for row in rows.tolist()]) for rows in batches]
            sorted_results = torch.cat(parts).float()
            if softmax:
                sorted_results = torch.softmax(sorted_results, dim=-1)
            results = sorted_results.cpu().numpy()
        ordered = np.empty_like(results)
        ordered[np.concatenate(batches)] = results
        return ordered

    def _batches(self, lengths: Int32Array) -> Iterator[NDArray[np.intp]]:
        """Rows of each batch, long texts first: the allocator's blocks then fit all others."""
        order = np.argsort(-lengths, kind="stable")
        for first in range(0, len(order), self.rows):
            yield order[first : first + self.rows]

    def _forward(self, encoded: list[list[int]]) -> Tensor:
        """Logits (rows, labels) on the device; a mask only where there is padding."""
        width = len(encoded[0])
        ids = np.zeros((len(encoded), width), np.int64)
        for row, tokens in zip(ids, encoded, strict=True):
            row[: len(tokens)] = tokens
        mask = None
        if len(encoded[-1]) < width:
            ends = np.array([len(tokens) for tokens in encoded])
            mask = self._moved((np.arange(width) < ends[:, None]).astype(np.int64))
        logits: Tensor = self.forward(input_ids=self._moved(ids), attention_mask=mask).logits
        return logits

    def _moved(self, array: NDArray[np.int64]) -> Tensor:
        tensor = torch.from_numpy(array)
        if self.device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)


def _best_attention(place: Place) -> Any:
    """The model with SDPA; a family that has none (DeBERTa) with what Transformers has for it."""
    load = partial(
        AutoModelForSequenceClassification.from_pretrained,
        place.folder,
        dtype=getattr(torch, place.dtype),
    )
    try:
        return load(attn_implementation="sdpa")
    except ValueError as error:
        if "scaled_dot_product_attention" not in str(error):
            raise
        return load(attn_implementation="eager")
