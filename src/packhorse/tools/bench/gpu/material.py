"""What the parts share: a model, many real texts, and one engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from packhorse.checkpoint import Checkpoint, load_checkpoint
from packhorse.request import Int32Array, Sequences
from packhorse.tokenizing.tokenizer import Tokenizer
from packhorse.tools.bench.batch_plan import BatchPlan
from packhorse.tools.bench.flops import ModelSize
from packhorse.tools.bench.preparation import Plan
from packhorse.tools.bench.programs import Place
from packhorse.tools.bench.programs.switches import Runner, load_runner
from packhorse.tools.bench.random_checkpoint import model_folder
from packhorse.tools.bench.workloads import distinct_reviews


@dataclass
class Material:
    """texts: all distinct reviews, more than 20,000; sequences: the same, tokenised."""

    plan: Plan
    checkpoint: Checkpoint
    note: str
    tokenizer: Tokenizer
    texts: list[str]
    sequences: Sequences
    _used: list[Runner] = field(default_factory=list)

    @classmethod
    def load(cls, plan: Plan, scratch: Path) -> Material:
        """Raises ConfigError or CheckpointError."""
        folder, note = model_folder(plan.model, scratch)
        checkpoint = load_checkpoint(folder)
        tokenizer = Tokenizer.load(checkpoint)

        def lengths(texts: Sequence[str]) -> Int32Array:
            return tokenizer.encode(list(texts)).lengths

        texts = distinct_reviews(lengths, plan.reviews)
        return cls(plan, checkpoint, note, tokenizer, texts, tokenizer.encode(texts))

    @property
    def size(self) -> ModelSize:
        return ModelSize.of(self.checkpoint)

    def place(self, dtype: str | None = None) -> Place:
        plan = self.plan
        folder = str(self.checkpoint.folder)
        return Place(folder, plan.device, dtype or plan.dtype, plan.threads)

    @cached_property
    def runner(self) -> Runner:
        """The engine with every optimisation, loaded when it is first needed."""
        runner = load_runner(self.place(), self.checkpoint)
        self._used.append(runner)
        return runner

    @cached_property
    def batches(self) -> BatchPlan:
        return BatchPlan(self.runner.max_tokens, self.runner.max_sequences, graphs=True)

    def close(self) -> None:
        for runner in self._used:
            runner.close()
