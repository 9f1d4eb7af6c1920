"""What ``packhorse bench fidelity`` does: measure on each device, print, write."""

from __future__ import annotations

import argparse
import time

from packhorse.config import AUTO
from packhorse.hardware import detect
from packhorse.tools.bench.arguments import resolved_device
from packhorse.tools.bench.fidelity.lines import (
    LARGEST,
    RELATIVE,
    RMS,
    Fidelity,
    Line,
    Planted,
    worst_of,
)
from packhorse.tools.bench.fidelity.measure import LONGEST, measure, quiet
from packhorse.tools.bench.fidelity.report import report
from packhorse.tools.bench.fidelity.subjects import subjects
from packhorse.tools.bench.ladder import run_now
from packhorse.tools.bench.results import FORMAT, write
from packhorse.tools.output_files import check_outputs


def fidelity(arguments: argparse.Namespace) -> int:
    """1 when a line does not hold or a planted fault is not seen.

    Raises ConfigError for wrong names, too few texts, or a GPU that is not there.
    """
    check_outputs(arguments.json)
    chosen = subjects(_names(arguments.families), _names(arguments.problems))
    threads = arguments.threads or detect().cpus
    quiet(threads)
    started = time.monotonic()
    lines: list[Line] = []
    planted: list[Planted] = []
    for device in _devices(arguments.device):
        more, seen = measure(
            chosen, arguments.texts, arguments.reviews, device, threads, arguments.workers
        )
        lines += more
        planted += seen
    result = Fidelity(
        format=FORMAT,
        run=run_now(threads, arguments.commit),
        texts=arguments.texts,
        note=f"distinct real reviews of at most {LONGEST} tokens; random weights",
        seconds=round(time.monotonic() - started, 1),
        limits={"relative": RELATIVE, "rms": RMS, "largest": LARGEST},
        lines=lines,
        planted=planted,
        worst=worst_of(lines),
    )
    if arguments.json is not None:
        write(result, arguments.json)
    print(report(result))
    return 1 if result.failures else 0


def _devices(device: str) -> list[str]:
    """auto: the CPU, and a GPU where there is one."""
    if device != AUTO:
        return [resolved_device(device)]
    return list(dict.fromkeys(["cpu", resolved_device(AUTO)]))


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]
