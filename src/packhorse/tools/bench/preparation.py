"""What all rungs share: the model's folder, the texts, and the answers in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from packhorse.checkpoint import Checkpoint, load_checkpoint
from packhorse.hardware import detect
from packhorse.request import Int32Array
from packhorse.tokenizing.tokenizer import Tokenizer
from packhorse.tools.bench.agreement import spread_of
from packhorse.tools.bench.flops import ModelSize
from packhorse.tools.bench.programs import Place
from packhorse.tools.bench.random_checkpoint import model_folder
from packhorse.tools.bench.rungs import HALF, Rung, reference
from packhorse.tools.bench.worker import Assignment, Command, Task
from packhorse.tools.bench.worker_process import WorkerProcess
from packhorse.tools.bench.workloads import SPREAD_TEXTS, Workload, workload
from packhorse.tools.demo_split import REVIEWS

_SPREAD = "spread"


@dataclass(frozen=True, slots=True)
class Plan:
    """What was asked for, every "auto" decided.

    subsets  texts a round for rungs that are too slow for all of them, by name
    commit   what to record where the sources are no git checkout
    cores    numbers of the cores that all workers are held to; None: they are not
    tune     whether programs with a choice of texts a batch try a few before the rounds
    """

    device: str
    dtype: str
    threads: int
    model: str
    rungs: list[Rung]
    workloads: list[str]
    texts: int
    rounds: int
    subsets: dict[str, int] = field(default_factory=dict)
    reviews: Path = REVIEWS
    commit: str | None = None
    cores: tuple[int, ...] | None = None
    tune: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """Ready for the rungs; ``model_note`` says where weights and tokenizer are from.

    scratch  a folder that workers may share
    """

    checkpoint: Checkpoint
    model_note: str
    size: ModelSize
    workloads: list[Workload]
    scratch: Path


@dataclass(frozen=True, slots=True)
class Reference:
    """The float32 answers: a .npy file by workload, and how far logits lie apart."""

    note: str
    files: dict[str, Path]
    spread: float


def prepare(plan: Plan, scratch: Path) -> Prepared:
    """Write or find the model, and tokenise the texts once, to count them.

    Raises ConfigError or CheckpointError.
    """
    folder, note = model_folder(plan.model, scratch)
    checkpoint = load_checkpoint(folder)
    tokenizer = Tokenizer.load(checkpoint)

    def lengths(texts: Sequence[str]) -> Int32Array:
        return tokenizer.encode(list(texts)).lengths

    texts = [workload(name, plan.texts, lengths, plan.reviews) for name in plan.workloads]
    return Prepared(checkpoint, note, ModelSize.of(checkpoint), texts, scratch)


def assignment(rung: Rung, plan: Plan, prepared: Prepared, tasks: dict[str, Task]) -> Assignment:
    """What the worker of a rung is told."""
    dtype = plan.dtype if rung.precision == HALF else rung.precision
    folder, scratch = str(prepared.checkpoint.folder), str(prepared.scratch)
    return Assignment(
        program=rung.program,
        off=rung.off,
        place=Place(folder, plan.device, dtype, plan.threads, scratch),
        size=prepared.size,
        problem_type=prepared.checkpoint.problem_type,
        tasks=tasks,
        tune=plan.tune,
    )


def tasks_of(rung: Rung, plan: Plan, prepared: Prepared) -> dict[str, Task]:
    """The texts of each workload that a rung gets a round: all, or the first few."""
    count = plan.subsets.get(rung.name, plan.texts)
    return {
        each.name: Task(each.texts[:count], each.lengths[:count].tolist())
        for each in prepared.workloads
    }


def compute_reference(plan: Plan, prepared: Prepared, scratch: Path) -> Reference:
    """Logits in float32 of every distinct text, in a process of their own.

    Raises WorkerError when that fails.
    """
    rung = reference(plan.device)
    distinct = {each.name: list(dict.fromkeys(each.texts)) for each in prepared.workloads}
    distinct[_SPREAD] = list(SPREAD_TEXTS)
    tasks = {name: Task(texts, []) for name, texts in distinct.items()}
    worker = WorkerProcess(
        rung.name, assignment(rung, plan, prepared, tasks), scratch / "reference.log"
    )
    try:
        worker.wait()
        files = {name: scratch / f"{name}.npy" for name in tasks}
        for name, file in files.items():
            worker.ask(Command("write_logits", name, target=str(file)), str)
    finally:
        worker.close()
    for each in prepared.workloads:
        row_of = {text: row for row, text in enumerate(distinct[each.name])}
        logits = np.load(files[each.name])[[row_of[text] for text in each.texts]]
        np.save(files[each.name], logits)
    return Reference(rung.change, files, spread_of(np.load(files.pop(_SPREAD))))


def half_type(device: str) -> str:
    """The half type that a device multiplies natively; float32 on a CPU without one."""
    if device != "cpu":
        return "float16"
    return "bfloat16" if detect().native_bfloat16 else "float32"
