"""The packed engine without overlap: tokenise all texts, then one batch after the other."""

from __future__ import annotations

from typing import Literal

import numpy as np

from packhorse.checkpoint import load_checkpoint
from packhorse.postprocess import scores_of
from packhorse.request import Float32Array, Int32Array
from packhorse.tokenizing.tokenizer import Tokenizer
from packhorse.tools.bench.batch_plan import BatchPlan
from packhorse.tools.bench.flops import ModelSize
from packhorse.tools.bench.programs import Place
from packhorse.tools.bench.programs.switches import (
    FAST_TOKENIZER,
    FIRST_TOKEN_ONLY,
    GRAPHS,
    load_runner,
)


class Packed:
    """``off`` names the optimisations that stay off."""

    def __init__(self, place: Place, off: tuple[str, ...]) -> None:
        self.dtype = place.dtype
        self.checkpoint = load_checkpoint(place.folder)
        backend: Literal["auto", "tokenizers"] = "tokenizers" if FAST_TOKENIZER in off else "auto"
        self.tokenizer = Tokenizer.load(self.checkpoint, backend=backend)
        self.runner = load_runner(place, self.checkpoint, off)
        self.plan = BatchPlan(
            self.runner.max_tokens,
            self.runner.max_sequences,
            first_token_only=FIRST_TOKEN_ONLY not in off,
            graphs=place.device != "cpu" and GRAPHS not in off,
        )

    def predict(self, texts: list[str]) -> Float32Array:
        return scores_of(self.logits(texts), self.checkpoint.problem_type)

    def logits(self, texts: list[str]) -> Float32Array:
        sequences = self.tokenizer.encode(texts)
        return np.concatenate(
            [self.runner.launch(batch).output().values for batch in self.plan.batches(sequences)]
        )

    def executed_flops(self, size: ModelSize, lengths: Int32Array) -> int:
        return self.plan.executed_flops(size, lengths)

    def close(self) -> None:
        self.runner.close()
