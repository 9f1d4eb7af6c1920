"""A flame graph by py-spy, which looks at a process of its own that runs the same passes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

SECONDS = 5.0


def py_spy() -> str | None:
    """The program: beside this interpreter, or in the path."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def write_flame_graph(words: list[str], file: Path, seconds: float = SECONDS) -> str | None:
    """Have py-spy watch ``packhorse profile`` loop over its passes; a fault, or None.

    words  the arguments of this command: model and settings
    """
    program = py_spy()
    if program is None:
        return "flame graph: py-spy is not installed (pip install py-spy)"
    command = [program, "record", "--format", "flamegraph", "--output", str(file), "--"]
    command += [sys.executable, "-m", "packhorse.tools.profiler.passes", str(seconds), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode or not file.exists():
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return f"flame graph: py-spy ended with status {done.returncode}: {last}"
    return None
