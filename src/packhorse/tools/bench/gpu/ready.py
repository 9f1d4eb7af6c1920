"""From the start of a process to its first answer."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from statistics import median
from tempfile import TemporaryDirectory

from packhorse.tools.bench.gpu.material import Material

PROGRAM = """\
import sys
from packhorse import Encoder
folder, device, dtype = sys.argv[1:]
encoder = Encoder(folder, device, dtype)
encoder.predict_proba(["It works."])
print("ready", flush=True)
sys.stdin.read()
encoder.close()
"""

_WARM_RUNS = 3


@dataclass(frozen=True, slots=True)
class ReadyTimes:
    """Seconds; ``cold`` with an empty cache of compiled kernels, ``warm`` with a filled one.

    The weights are in the page cache both times.
    """

    cold: float
    warm: float
    warm_runs: list[float]


def measure_ready(material: Material) -> ReadyTimes:
    """Raises RuntimeError when a process ends without an answer."""
    with TemporaryDirectory(prefix="packhorse-bench-") as cache:
        cold, *warm = (_seconds(material, cache) for _ in range(1 + _WARM_RUNS))
    return ReadyTimes(cold, median(warm), warm)


def _seconds(material: Material, kernel_cache: str) -> float:
    place = material.place()
    started = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, place.folder, place.device, place.dtype],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TRITON_CACHE_DIR": kernel_cache},
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        line = process.stdout.readline()
        seconds = time.monotonic() - started
        process.stdin.close()
    if line != "ready\n":
        raise RuntimeError("the process ended before its first answer")
    return seconds
