"""What a run of the ladder leaves behind: the JSON file, as classes.

The file is written and read through these, so that a field cannot be spelled
in two ways. Rates and times are medians over the rounds that count (see
``summary``); every sample is kept beside them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from packhorse.errors import ConfigError
from packhorse.tools.bench.agreement import Agreement
from packhorse.tools.bench.ceilings import Ceiling
from packhorse.tools.bench.machine_load import Load

FORMAT = 1

OK, DISAGREES, FAILED, SKIPPED = "ok", "disagrees", "failed", "skipped"
"""How a rung ended. All but ``ok`` and ``skipped`` make the whole run fail."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One round of one rung on one workload.

    load_before, load_during  of other work on the machine; None where that cannot be seen
    """

    round: int
    seconds: float
    cpu_seconds: float
    load_before: Load | None
    load_during: Load | None

    @property
    def is_quiet(self) -> bool:
        return all(load is None or load.is_quiet for load in (self.load_before, self.load_during))


@dataclass(frozen=True, slots=True)
class Measured:
    """One rung on one workload.

    texts            a round; fewer than the workload has for slow rungs, whose time is scaled up:
                     they pad every text to the same length, so each costs the same
    noisy            fewer than half of the samples were quiet, so all of them count
    ms_per_1000      total milliseconds for 1000 texts
    cpu_seconds      of all threads, for 1000 texts; cpu_percent of all cores of the machine
    peak_bytes       of the device: taken by PyTorch on a GPU, resident memory on a CPU
    vs_naive, vs_batched   how many times faster, median of the ratios round by round
    nominal_flops    a round; executed_flops: what the program multiplied, padding included
    nominal_share, executed_share   of the matrix product measured in the same round
    """

    workload: str
    texts: int
    samples: list[Sample]
    noisy: bool
    ms_per_1000: float
    ms_per_text: float
    texts_per_second: float
    tokens_per_second: float
    cpu_seconds: float
    cpu_percent: float
    peak_bytes: int
    vs_naive: float | None
    vs_batched: float | None
    nominal_flops: int
    executed_flops: int
    nominal_share: float
    executed_share: float
    agreement: Agreement


@dataclass(frozen=True, slots=True)
class RungResult:
    """One rung; ``fault`` says why it disagrees, failed or was skipped."""

    name: str
    change: str
    status: str
    fault: str | None = None
    dtype: str | None = None
    ready_seconds: float | None = None
    measured: list[Measured] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """What had to be done: texts, tokens, and the arithmetic and traffic of it.

    least_bytes  weights once a batch and every activation once, in the ladder's type
    """

    name: str
    note: str
    texts: int
    distinct: int
    tokens: int
    longest: int
    nominal_flops: int
    first_token_flops: int
    least_bytes: int


@dataclass(frozen=True, slots=True)
class Run:
    """When, where, with what and by which command."""

    date: str
    command: str
    commit: str | None
    machine: dict[str, Any]
    versions: dict[str, str | None]


@dataclass(frozen=True, slots=True)
class Ladder:
    """The file.

    ceilings  by type, one for each round; matmul_size: n of the n³ product
    details   numbers of the GPU beyond the ladder
    """

    format: int
    run: Run
    device: str
    dtype: str
    model: str
    model_note: str
    shape: dict[str, int]
    reference: str
    rounds: int
    matmul_size: int
    ceilings: dict[str, list[Ceiling]]
    workloads: list[WorkloadResult]
    rungs: list[RungResult]
    details: dict[str, Any] | None = None

    @property
    def failures(self) -> list[RungResult]:
        """Rungs that make the run fail."""
        return [rung for rung in self.rungs if rung.status in (DISAGREES, FAILED)]


@dataclass(frozen=True, slots=True)
class GpuNumbers:
    """The file of ``bench gpu``; ``details`` as in a ladder."""

    format: int
    run: Run
    device: str
    dtype: str
    model: str
    details: dict[str, Any]


def write(results: Any, path: Path) -> None:
    """One of the files, whose classes are here and in ``fidelity.lines``, as JSON, indented."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")


def read(path: Path) -> Ladder:
    """A file that ``write`` wrote.

    Raises ConfigError when it is missing or something else.
    """
    try:
        ladder = msgspec.json.decode(path.read_bytes(), type=Ladder)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path} is not a ladder's results: {error}") from error
    if ladder.format != FORMAT:
        raise ConfigError(f"{path} has format {ladder.format}; this version reads {FORMAT}")
    return ladder
