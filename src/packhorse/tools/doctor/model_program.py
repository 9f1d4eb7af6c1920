"""A model of ours as a program: texts in, scores out, tokenizing and computing each by itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from packhorse.checkpoint import Checkpoint
from packhorse.config import Config, tokenizer_choice
from packhorse.engine.load import load_runner
from packhorse.request import Int32Array, Sequences
from packhorse.tokenizing.tokenizer import Tokenizer
from packhorse.tools.bench.batch_plan import BatchPlan

ROUNDS = 3


class ModelProgram:
    """The engine's runner, batch after batch, with the settings of ``config``."""

    def __init__(self, config: Config, checkpoint: Checkpoint) -> None:
        self.tokenizer = Tokenizer.load(checkpoint, backend=tokenizer_choice(config))  # type: ignore[arg-type]
        self.runner, self.info = load_runner(config, checkpoint, notify=False)
        self._plan = BatchPlan(self.runner.max_tokens, self.runner.max_sequences)
        for batch in self.runner.warm_up_batches():
            self.runner.launch(batch).output()

    def __call__(self, texts: Sequence[str]) -> None:
        """Answer all texts; the answers are dropped."""
        self.run(self.tokenizer.encode(list(texts)))

    def run(self, sequences: Sequences) -> None:
        """Compute what is tokenised."""
        for batch in self._plan.batches(sequences):
            self.runner.launch(batch).output()

    def seconds(self, texts: Sequence[str]) -> tuple[float, float]:
        """Of tokenizing and of computing all texts, the best of a few rounds each."""
        sequences = self.tokenizer.encode(list(texts))
        tokenizing, computing = [], []
        for _ in range(ROUNDS):
            started = time.perf_counter()
            self.tokenizer.encode(list(texts))
            tokenised = time.perf_counter()
            self.run(sequences)
            tokenizing.append(tokenised - started)
            computing.append(time.perf_counter() - tokenised)
        return min(tokenizing), min(computing)

    def bucket_padding(self, sequences: Sequences) -> float:
        """Share of computed tokens that fill up the buckets of captured graphs."""
        before = self.runner.padding_tokens
        self.run(sequences)
        added = self.runner.padding_tokens - before
        return added / (added + sequences.num_tokens)

    def close(self) -> None:
        """Free the device."""
        self.runner.close()


def padding_elsewhere(lengths: Int32Array) -> dict[str, float]:
    """Share of padding that a program without packing would compute for texts of these lengths.

    At 128 tokens each, in batches of 32 as they come, and in such batches of texts of like length.
    """

    def in_batches(values: Int32Array) -> float:
        computed = sum(
            int(values[i : i + 32].max()) * len(values[i : i + 32])
            for i in range(0, len(values), 32)
        )
        return 1 - float(values.sum()) / computed

    cut = np.minimum(lengths, 128)
    return {
        "to_128": 1 - float(cut.sum()) / (128 * len(cut)),
        "batches_of_32": in_batches(lengths),
        "batches_of_32_sorted": in_batches(np.sort(lengths)),
    }


def describe(program: ModelProgram, sequences: Sequences) -> dict[str, Any]:
    """What is in use, and what the texts are."""
    return program.info | {
        "tokenizer": program.tokenizer.backend,
        "tokens": sequences.num_tokens,
        "longest": int(sequences.lengths.max()),
        "truncated": float(sequences.truncated.mean()),
        "padding_without_packing": padding_elsewhere(sequences.lengths),
    }
