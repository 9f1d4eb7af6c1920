"""What is compared: every family, with every kind of problem; a further task is further rows."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from packhorse import Encoder
from packhorse.errors import ConfigError
from packhorse.families import FAMILIES
from packhorse.request import Float32Array, Sequences
from packhorse.tasks import Task


@dataclass(frozen=True, slots=True)
class Problem:
    """One kind of question to a model.

    task      what the model is loaded for
    settings  keys of the checkpoint's config
    pairs     whether inputs are pairs of texts
    theirs    from the answer of Transformers' model to what is compared: (texts, width)
    ours      the same from our encoder
    """

    name: str
    task: Task
    settings: dict[str, Any] = field(default_factory=dict)
    pairs: bool = False
    theirs: Callable[[Any], Tensor] = lambda answer: answer.logits
    ours: Callable[[Encoder, Sequences], Float32Array] = Encoder.logits

    @property
    def checkpoint(self) -> str:
        """Problems of equal settings share a checkpoint: this names it."""
        return "-".join([self.task, *(str(value) for value in self.settings.values())])


PROBLEMS = (
    Problem("single label", Task.CLASSIFY, {"num_labels": 3}),
    Problem("pairs", Task.CLASSIFY, {"num_labels": 3}, pairs=True),
    Problem(
        "multi-label",
        Task.CLASSIFY,
        {"num_labels": 4, "problem_type": "multi_label_classification"},
    ),
    Problem("regression", Task.CLASSIFY, {"num_labels": 1, "problem_type": "regression"}),
)


@dataclass(frozen=True, slots=True)
class Subject:
    """One row of the table: a family (its ``model_type``) and a problem."""

    family: str
    problem: Problem

    @property
    def model_class(self) -> str:
        """The class of Transformers that computes it."""
        architectures = FAMILIES[self.family].architectures
        return next(name for name, task in architectures.items() if task == self.problem.task)


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
        if problem.task in family.architectures.values()
        and (not families or name in families)
        and (not problems or problem.name in problems)
    ]


def _check(wanted: Collection[str], known: Collection[str], flag: str) -> None:
    for name in wanted:
        if name not in known:
            raise ConfigError(f"{flag}: {name!r} is not one of {', '.join(known)}")
