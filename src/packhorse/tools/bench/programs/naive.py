"""The first program of the guide: one text at a time, float32, padded to 128 tokens."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from packhorse.request import Float32Array, Int32Array
from packhorse.tools.bench.flops import ModelSize, padded
from packhorse.tools.bench.programs import Place

WIDTH = 128
"""Tokens that every text is padded or cut to."""


class Naive:
    """What the documentation of Transformers shows, in a loop."""

    dtype = "float32"

    def __init__(self, place: Place) -> None:
        self.device = torch.device(place.device)
        self.tokenizer = AutoTokenizer.from_pretrained(place.folder)
        self.model = AutoModelForSequenceClassification.from_pretrained(
            place.folder, dtype=torch.float32
        )
        self.model.to(self.device)
        self.model.eval()

    def predict(self, texts: list[str]) -> list[float]:
        return [self.predict_one(text) for text in texts]

    def predict_one(self, text: str) -> float:
        """The probability that the text is positive."""
        probabilities = torch.softmax(self.forward(text), dim=-1).cpu().numpy()
        return float(probabilities[0][1])

    def forward(self, text: str) -> Tensor:
        """Logits (1, labels) on the device."""
        encoding = self.tokenizer(
            text, padding="max_length", max_length=WIDTH, truncation=True, return_tensors="pt"
        )
        on_device = {name: tensor.to(self.device) for name, tensor in encoding.items()}
        with torch.no_grad():
            logits: Tensor = self.model(**on_device).logits
        return logits

    def logits(self, texts: list[str]) -> Float32Array:
        return np.concatenate([self.forward(text).cpu().numpy() for text in texts])

    def executed_flops(self, size: ModelSize, lengths: Int32Array) -> int:
        return padded(size, len(lengths), WIDTH)

    def close(self) -> None:
        pass
