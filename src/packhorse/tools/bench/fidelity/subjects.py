"""What is compared: every family, with every kind of problem; a further task is further rows."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from packhorse import Encoder
from packhorse.errors import ConfigError
from packhorse.families import FAMILIES
from packhorse.request import Float32Array, Sequences, joined
from packhorse.tasks import Task
from packhorse.vectors import sparse_vectors


@dataclass(frozen=True, slots=True)
class Problem:
    """One kind of question to a model.

    task      what the model is loaded for
    settings  keys of the checkpoint's config
    pairs     whether inputs are pairs of texts
    head      how the name of Transformers' class ends
    theirs    from the answer of Transformers' model to what is compared: (texts, width), or
              (texts, tokens, width) where each token has a row
    ours      the same from our encoder, the rows one after the other: (rows, width)
    at_once   most texts that Transformers computes together
    """

    name: str
    task: Task
    settings: dict[str, Any] = field(default_factory=dict)
    pairs: bool = False
    head: str = "ForSequenceClassification"
    theirs: Callable[[Any], Tensor] = lambda answer: answer.logits
    ours: Callable[[Encoder, Sequences], Float32Array] = Encoder.logits
    at_once: int = 128

    @property
    def checkpoint(self) -> str:
        """Problems of equal settings share a checkpoint: this names it."""
        return "-".join([self.task, *(str(value) for value in self.settings.values())])


def _mean(answer: Any) -> Tensor:
    """The mean of the hidden states, in float32 whatever their type, as sentence-transformers."""
    states: Tensor = answer.last_hidden_state
    return states.float().mean(dim=1)


def _splade(answer: Any) -> Tensor:
    """SPLADE's weights of logits (texts, tokens, vocabulary), by its definition, in float32."""
    logits: Tensor = answer.logits
    return logits.float().relu().log1p().amax(dim=1)


def _our_splade(encoder: Encoder, sequences: Sequences) -> Float32Array:
    """The same from our encoder: dense, float32 (texts, vocabulary)."""
    loaded = encoder._loaded
    vectors = sparse_vectors(joined([loaded.engine.submit(sequences).result()]))
    dense = np.zeros((len(vectors), loaded.checkpoint.width), np.float32)
    for row, vector in zip(dense, vectors, strict=True):
        row[vector.indices] = vector.values
    return dense


def _at_half(answer: Any) -> Tensor:
    """Logits (texts, vocabulary) of the token half-way."""
    logits: Tensor = answer.logits
    return logits[:, logits.shape[1] // 2]


def _our_at_half(encoder: Encoder, sequences: Sequences) -> Float32Array:
    """The same from our encoder, which reads them where a mask stands."""
    return encoder.logits(replace(sequences, marks=sequences.lengths // 2))


PROBLEMS = (
    Problem("single label", Task.CLASSIFY, {"num_labels": 3}),
    Problem("pairs", Task.CLASSIFY, {"num_labels": 3}, pairs=True),
    Problem(
        "multi-label",
        Task.CLASSIFY,
        {"num_labels": 4, "problem_type": "multi_label_classification"},
    ),
    Problem("regression", Task.CLASSIFY, {"num_labels": 1, "problem_type": "regression"}),
    Problem("rerank", Task.RERANK, {"num_labels": 1}, pairs=True),
    Problem("token labels", Task.TOKEN_CLASSIFY, {"num_labels": 5}, head="ForTokenClassification"),
    Problem("mean embeddings", Task.EMBED, head="Model", theirs=_mean),
    Problem(
        "sparse",
        Task.EMBED_SPARSE,
        head="ForMaskedLM",
        theirs=_splade,
        ours=_our_splade,
        at_once=16,  # their logits are tokens x vocabulary
    ),
    Problem(
        "masks",
        Task.FILL_MASK,
        head="ForMaskedLM",
        theirs=_at_half,
        ours=_our_at_half,
        at_once=16,
    ),
)


@dataclass(frozen=True, slots=True)
class Subject:
    """One row of the table: a family (its ``model_type``) and a problem."""

    family: str
    problem: Problem

    @property
    def model_class(self) -> str:
        """The class of Transformers that computes it."""
        return next(
            name for name in FAMILIES[self.family].architectures if name.endswith(self.problem.head)
        )


def subjects(families: Collection[str] = (), problems: Collection[str] = ()) -> list[Subject]:
    """Every family with every problem that it has a class for; only those named, if any are.

    Raises ConfigError for a name that is not there.
    """
    _check(families, FAMILIES, "--families")
    _check(problems, [problem.name for problem in PROBLEMS], "--problems")
    return [
        Subject(name, problem)
        for name, family in FAMILIES.items()
        for problem in PROBLEMS
        if any(each.endswith(problem.head) for each in family.architectures)
        and (not families or name in families)
        and (not problems or problem.name in problems)
    ]


def _check(wanted: Collection[str], known: Collection[str], flag: str) -> None:
    for name in wanted:
        if name not in known:
            raise ConfigError(f"{flag}: {name!r} is not one of {', '.join(known)}")
