"""The process of one rung: loads its program, then does what it is told, line by line.

Commands come in as JSON lines on standard input and answers leave so on
standard output; whatever libraries print goes to standard error. Between
commands the process waits, so that of many only one works at a time.
"""

from __future__ import annotations

import gc
import math
import os
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from packhorse.checkpoint import ProblemType
from packhorse.request import Float32Array, Int32Array
from packhorse.tools.bench import amx
from packhorse.tools.bench.agreement import Agreement, compare, compare_scores
from packhorse.tools.bench.flops import ModelSize
from packhorse.tools.bench.programs import Place, Program, Tunable, builder

ENOUGH_SECONDS = 0.2
"""A round repeats what is faster than this: a few milliseconds after a wait are the GPU waking."""

CEILINGS = "ceilings"
"""The program that measures the device instead of a rung."""


@dataclass(frozen=True, slots=True)
class Task:
    """The texts of one workload as one rung sees them; ``lengths`` in tokens."""

    texts: list[str]
    lengths: list[int]


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a worker is started for.

    dtypes  of the products that the ceilings are measured by
    tune    whether a program with a choice of texts a batch tries a few first
    """

    program: str
    off: tuple[str, ...]
    place: Place
    size: ModelSize
    problem_type: ProblemType
    tasks: dict[str, Task]
    dtypes: list[str] = field(default_factory=list)
    tune: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """``do`` names the method; the rest is for those that need it.

    reference  .npy file with the reference logits of the workload's texts
    target     .npy file to write logits into
    """

    do: str
    workload: str = ""
    reference: str = ""
    target: str = ""
    spread: float = 0.0


@dataclass(frozen=True, slots=True)
class Timing:
    """One timed round: means over its passes.

    passes       over all texts that were timed; a first one that was too fast is not among them
    cpu_seconds  of all threads of the process
    busy_seconds the same for the whole round, passes that are not counted too
    score_error  largest difference from the reference's scores; fault: what is wrong with it
    """

    texts: int
    seconds: float
    cpu_seconds: float
    executed_flops: int
    peak_bytes: int
    score_error: float | None
    fault: str | None
    passes: int = 1
    busy_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Ready:
    """The first answer: the type the program computes in, and what else it says of itself.

    has_amx  whether the kernel granted AMX to the process; None where it cannot be known
    """

    dtype: str
    note: str | None = None
    has_amx: bool | None = None


class RungWorker:
    """Runs one program over its tasks."""

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.program: Program = builder(assignment.program)(assignment.place, assignment.off)
        texts = next(iter(assignment.tasks.values())).texts
        self.program.predict([texts[0]])
        if assignment.tune and isinstance(self.program, Tunable):
            self.program.tune(texts)
        self._peak_is_reset = False

    def ready(self) -> Ready:
        note = self.program.note if isinstance(self.program, Tunable) else None
        return Ready(self.program.dtype, note, amx.is_granted())

    def write_logits(self, command: Command) -> str:
        """The logits of a workload into a file; returns its name."""
        logits = self.program.logits(self.assignment.tasks[command.workload].texts)
        np.save(command.target, logits)
        return command.target

    def check(self, command: Command) -> Agreement:
        """Compare logits with the reference; also the warm-up."""
        task = self.assignment.tasks[command.workload]
        logits = self.program.logits(task.texts)
        return compare(logits, self._reference(command, task), command.spread, self.program.dtype)

    def time(self, command: Command) -> Timing:
        """One round of a workload."""
        task = self.assignment.tasks[command.workload]
        self._reset_peak()
        gc.collect()
        passes, began = 1, time.process_time()
        scores, seconds, cpu = self._timed(task.texts, passes)
        if seconds < ENOUGH_SECONDS:
            passes = math.ceil(ENOUGH_SECONDS / seconds)
            scores, seconds, cpu = self._timed(task.texts, passes)
        busy = time.process_time() - began
        error, fault = compare_scores(
            scores,
            self._reference(command, task),
            self.assignment.problem_type,
            command.spread,
            self.program.dtype,
        )
        lengths: Int32Array = np.array(task.lengths, np.int32)
        return Timing(
            texts=len(task.texts),
            seconds=seconds,
            cpu_seconds=cpu,
            executed_flops=self.program.executed_flops(self.assignment.size, lengths),
            peak_bytes=self._peak(),
            score_error=error,
            fault=fault,
            passes=passes,
            busy_seconds=busy,
        )

    def _timed(
        self, texts: list[str], passes: int
    ) -> tuple[Float32Array | list[float], float, float]:
        """The scores of the last pass; seconds and CPU seconds of one."""
        cpu_started, started = time.process_time(), time.perf_counter()
        for _ in range(passes):
            scores = self.program.predict(texts)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu_started
        return scores, seconds / passes, cpu / passes

    def close(self) -> None:
        self.program.close()

    def _reference(self, command: Command, task: Task) -> Float32Array:
        reference: Float32Array = np.load(command.reference)
        return reference[: len(task.texts)]

    def _reset_peak(self) -> None:
        """Once, before the first timed round: loading may need more than running."""
        if self._peak_is_reset:
            return
        self._peak_is_reset = True
        if self.assignment.place.device != "cpu":
            import torch

            torch.cuda.reset_peak_memory_stats(self.assignment.place.device)
        elif os.access("/proc/self/clear_refs", os.W_OK):
            Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, see proc(5)

    def _peak(self) -> int:
        """Bytes that PyTorch took from the GPU at most; on a CPU the peak of resident memory."""
        if self.assignment.place.device != "cpu":
            import torch

            return torch.cuda.max_memory_reserved(self.assignment.place.device)
        return resident_peak()


class CeilingsWorker:
    """Measures the device."""

    def __init__(self, assignment: Assignment) -> None:
        from packhorse.tools.bench.ceilings import Ceilings

        place = assignment.place
        self._ceilings = Ceilings(place.device, assignment.dtypes, place.threads)

    def ready(self) -> Ready:
        return Ready("")

    def measure(self, command: Command) -> Any:
        return self._ceilings.measure()

    def close(self) -> None:
        pass


def resident_peak(status: Path = Path("/proc/self/status")) -> int:
    """Peak resident memory of this process in bytes."""
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def serve(commands: IO[str], answers: IO[bytes]) -> None:
    """Read the assignment, load, answer commands until the input ends."""
    assignment = msgspec.json.decode(commands.readline(), type=Assignment)
    kind = CeilingsWorker if assignment.program == CEILINGS else RungWorker
    if os.environ.get(amx.REFUSED):
        amx.refuse()
    worker = kind(assignment)
    _send(answers, worker.ready())
    for command in _commands(commands):
        _send(answers, getattr(worker, command.do)(command))
    worker.close()


def _commands(lines: IO[str]) -> Iterator[Command]:
    for line in lines:
        yield msgspec.json.decode(line, type=Command)


def _send(answers: IO[bytes], answer: Any) -> None:
    answers.write(msgspec.json.encode(answer) + b"\n")
    answers.flush()


def main() -> int:
    """Serve standard input until it ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not get between the answers
    serve(sys.stdin, answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
