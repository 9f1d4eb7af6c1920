"""The second program of the guide: batches of 32, a half type, buffers allocated once, a stream."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from packhorse.request import Float32Array, Int32Array
from packhorse.tools.bench.flops import ModelSize, padded
from packhorse.tools.bench.programs import Place

ROWS = 32
WIDTH = 128


class Batched:
    """On a CPU the same without the stream, in bfloat16 where the processor has it."""

    def __init__(self, place: Place) -> None:
        self.dtype = place.dtype
        device = torch.device(place.device)
        self.tokenizer = AutoTokenizer.from_pretrained(place.folder)
        model = AutoModelForSequenceClassification.from_pretrained(
            place.folder, dtype=torch.float32
        )
        self.model = model.to(device, getattr(torch, place.dtype)).eval()
        self.input_ids = torch.zeros(ROWS, WIDTH, dtype=torch.int32, device=device)
        self.attention_mask = torch.zeros(ROWS, WIDTH, dtype=torch.int32, device=device)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def predict(self, texts: list[str]) -> Float32Array:
        return np.concatenate(
            [torch.softmax(logits, dim=-1).cpu().float().numpy() for logits in self._batches(texts)]
        )

    def logits(self, texts: list[str]) -> Float32Array:
        return np.concatenate([logits.cpu().float().numpy() for logits in self._batches(texts)])

    def executed_flops(self, size: ModelSize, lengths: Int32Array) -> int:
        return padded(size, len(lengths), WIDTH)

    def close(self) -> None:
        pass

    def _batches(self, texts: list[str]) -> map[Tensor]:
        return map(self.forward, [texts[i : i + ROWS] for i in range(0, len(texts), ROWS)])

    def forward(self, texts: list[str]) -> Tensor:
        """Logits (texts, labels) of at most 32 texts, on the device."""
        encoding = self.tokenizer(
            texts, padding="max_length", max_length=WIDTH, truncation=True, return_tensors="pt"
        )
        count = len(texts)
        with torch.cuda.stream(self.stream) if self.stream else nullcontext():
            self.input_ids[:count].copy_(encoding["input_ids"], non_blocking=True)
            self.attention_mask[:count].copy_(encoding["attention_mask"], non_blocking=True)
        if self.stream is not None:
            self.stream.synchronize()
        with torch.no_grad():
            logits: Tensor = self.model(
                input_ids=self.input_ids[:count], attention_mask=self.attention_mask[:count]
            ).logits
        return logits
