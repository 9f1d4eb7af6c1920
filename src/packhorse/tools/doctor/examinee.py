"""The process in which a user's script is examined: ``python -m packhorse.tools.doctor.examinee``.

It reads an assignment as JSON from standard input and writes its report to the
file named there. What the script prints goes to standard error.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch

from packhorse.errors import ConfigError
from packhorse.hardware import detect
from packhorse.tools.doctor import (
    device_faults,
    device_memory,
    host_faults,
    memory_growth,
    model_faults,
)
from packhorse.tools.doctor.findings import Examination, Finding
from packhorse.tools.doctor.passes import ForwardPass, Recorder
from packhorse.tools.doctor.replay import device_of
from packhorse.tools.doctor.sample_texts import spread
from packhorse.tools.doctor.sampler import Sampler
from packhorse.tools.doctor.script import Place, Program, load

FEWEST, IN_A_CALL = 8, 4
"""Texts that are examined at least, and in the calls of which there are many."""

T = TypeVar("T")

INTERRUPTED = 130

ROUNDS, SECONDS = 3, 0.3
"""Of plain calls: at least so many, and so long."""


class Assignment(msgspec.Struct, frozen=True):
    """What to examine, with which texts, and where to leave the report.

    seconds  of one call with all texts: slower programs are given fewer
    """

    file: str
    name: str
    calls: str
    texts: list[str]
    seconds: float
    report: str


class Report(msgspec.Struct, frozen=True):
    """An examination, or why there is none: ``fault``; ``is_setup``: the callable is not there."""

    examination: Examination | None = None
    fault: str | None = None
    is_setup: bool = False


def main() -> None:
    """Read, examine, report."""
    assignment = msgspec.json.decode(sys.stdin.buffer.read(), type=Assignment)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    report = _report(assignment)
    Path(assignment.report).write_bytes(msgspec.json.encode(report))


def _report(assignment: Assignment) -> Report:
    place = Place(Path(assignment.file), assignment.name)
    try:
        program = Program.of(load(place), assignment.calls)
        return Report(examine(place, program, assignment.texts, assignment.seconds))
    except ConfigError as error:
        return Report(fault=str(error), is_setup=True)
    except KeyboardInterrupt:  # which the command had too, and tells of
        raise SystemExit(INTERRUPTED) from None
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        line = _line_of(error, place.file)
        return Report(fault=f"{place} raised {type(error).__name__} ({line})")


def _line_of(error: BaseException, file: Path) -> str:
    """The innermost line of the script itself that it came through."""
    if isinstance(error, SyntaxError) and Path(error.filename or "").name == file.name:
        return f"{file.name}:{error.lineno}"  # nothing has run that could be in a traceback
    frames = traceback.extract_tb(error.__traceback__)
    own = [f.lineno for f in frames if Path(f.filename).name == file.name]
    return f"{file.name}:{own[-1]}" if own else f"not in {file.name}"


def examine(place: Place, program: Program, texts: Sequence[str], seconds: float) -> Examination:
    """All examinations, one after the other: each could disturb the next's timing."""
    hardware = detect()
    chosen = _as_many_as_time_allows(program, texts, seconds)
    call = partial(program, chosen)
    rate, tokenizing = _plain_rate(call, len(chosen))
    recorder = Recorder(place.folder)
    with recorder.recording():
        call()
    passes = recorder.passes
    seen = model_faults.seen(passes) | {
        "called_with": program.calls,
        "threads": torch.get_num_threads(),
        "cores": hardware.cpus,
        "tokenizing_share": tokenizing,
    }
    found: list[Finding | None] = []
    skipped: list[str] = []
    few = partial(program, spread(chosen, IN_A_CALL))
    if _is_on_gpu(passes) or (torch.cuda.is_initialized() and not passes):
        looked = _tried(
            lambda: device_faults.find(call, passes, len(chosen), rate), "the GPU's work", skipped
        )
        of_device, more = looked or ([], {})
        found += of_device
        seen |= more
        device = device_of(passes) if passes else torch.device("cuda")
        in_pieces = _tried(lambda: _memory(few, rate, device, seen), "fragmentation", skipped)
        found.append(in_pieces)
    if not passes:
        skipped.append("no torch.nn.Module was called: batches, padding and type are not seen")
    found.append(_tried(lambda: memory_growth.find(few), "memory-growth", skipped))
    if not _is_on_gpu(passes):
        found.append(host_faults.threads(call, len(chosen), hardware.cpus))
    found.append(host_faults.tokenizer(tokenizing, rate))
    of_model = model_faults.find(passes, len(chosen), rate, hardware, skipped)  # changes the model
    found = [*of_model, *found]
    return Examination(
        str(place), len(chosen), rate, seen, [each for each in found if each is not None], skipped
    )


def _memory(
    few: Callable[[], None], rate: float, device: torch.device, seen: dict[str, Any]
) -> Finding | None:
    """Whether device memory lies in pieces; what was seen goes into ``seen``."""
    found, figures = device_memory.examine(few, IN_A_CALL, rate, device)
    seen |= figures
    return found


def _is_on_gpu(passes: Sequence[ForwardPass]) -> bool:
    return bool(passes) and device_of(passes).type == "cuda"


def _tried(find: Callable[[], T | None], name: str, skipped: list[str]) -> T | None:
    """A program may bear no instrument: compiled code refuses dispatch modes, for one."""
    try:
        return find()
    except Exception as error:
        traceback.print_exc()
        skipped.append(f"{name}: the program raised {type(error).__name__} under examination")
        return None


def _as_many_as_time_allows(program: Program, texts: Sequence[str], seconds: float) -> list[str]:
    """The first calls also load, compile and warm up."""
    program(texts[:2])
    started = time.perf_counter()
    program(texts[:IN_A_CALL])
    each = (time.perf_counter() - started) / IN_A_CALL
    count = max(FEWEST, int(seconds / each))
    chosen = spread(texts, count)
    program(chosen)
    return chosen


def _plain_rate(call: Callable[[], Any], texts: int) -> tuple[float, float]:
    """Texts/s of the best round, and the share of samples in a tokenizer."""
    rounds: list[float] = []
    with Sampler() as sampler:
        while len(rounds) < ROUNDS or sum(rounds) < SECONDS:
            started = time.perf_counter()
            call()
            rounds.append(time.perf_counter() - started)
    return texts / min(rounds), sampler.share


if __name__ == "__main__":
    main()
