"""What the rivals share: a Transformers classifier, and answers in the shape that is checked.

Nothing of Packhorse is imported here: each rival runs in its own environment.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def native_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 natively: elsewhere float32 is faster."""
    flags = Path("/proc/cpuinfo").read_text().split()
    return "avx512_bf16" in flags or "amx_bf16" in flags


class Classifier:
    """Batches, padded to the longest text of each, in bfloat16 where the processor has it."""

    def __init__(self) -> None:
        torch.set_num_threads(int(os.environ["RIVAL_THREADS"]))
        folder = os.environ["RIVAL_MODEL"]
        dtype = torch.bfloat16 if native_bfloat16() else torch.float32
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForSequenceClassification.from_pretrained(
            folder, dtype=dtype, attn_implementation="sdpa"
        ).eval()
        self.labels = self.model.config.id2label
        self.predict(["warm up"] * 32)

    @torch.inference_mode()
    def predict(self, texts: list[str]) -> list[list[dict[str, Any]]]:
        """Labels with scores for each text, the best first."""
        encoded = self.tokenizer(
            texts, padding=True, truncation=True, max_length=512, return_tensors="pt"
        )
        scores = self.model(**encoded).logits.float().softmax(-1).tolist()
        return [labelled(row, self.labels) for row in scores]


def labelled(scores: list[float], labels: dict[int, str]) -> list[dict[str, Any]]:
    rows = [{"score": score, "label": labels[index]} for index, score in enumerate(scores)]
    return sorted(rows, key=lambda row: -row["score"])


def port() -> int:
    """The port to listen on."""
    return int(os.environ["RIVAL_PORT"])


def print_versions(*libraries: str) -> None:
    """What is compared, for the record: one line of JSON on standard output."""
    from importlib.metadata import version

    names = ("torch", "transformers", "tokenizers", *libraries)
    print(
        json.dumps({"python": sys.version.split()[0]} | {n: version(n) for n in names}), flush=True
    )
