"""What the numbers were measured on and with: machine, versions, commit."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packhorse import __version__
from packhorse.hardware import detect

LIBRARIES = (
    "torch",
    "transformers",
    "tokenizers",
    "nanotoken",
    "gigatoken",
    "numpy",
    "triton",
    "safetensors",
    "msgspec",
)


def versions(more: Sequence[str] = ()) -> dict[str, str | None]:
    """Python's, ours, and those of every library that computes; None where one is missing.

    more  distributions beyond LIBRARIES
    """
    return {
        "python": platform.python_version(),
        "packhorse": __version__,
        **{name: _version(name) for name in (*LIBRARIES, *more)},
    }


def description(threads: int) -> dict[str, Any]:
    """Processor, memory, GPU and its driver; nothing that names the host or its user."""
    hardware = detect()
    return {
        "cpu": _cpu_name(),
        "cpus": hardware.cpus,
        "threads": threads,
        "native_bfloat16": hardware.native_bfloat16,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": [gpu.name for gpu in hardware.gpus],
        "gpu_driver": _driver(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def commit() -> str | None:
    """The commit of this checkout, with "+changes" where files differ; None outside of one."""
    head = _git("rev-parse", "HEAD")
    if head is None:
        return None
    return f"{head}+changes" if _git("status", "--porcelain", "-uno") else head


def command_line() -> str:
    """How this was started, without the folders of interpreter and package."""
    name = Path(sys.argv[0]).name
    started = "python -m packhorse.tools.bench" if name == "__main__.py" else name
    return " ".join([started, *sys.argv[1:]])


def _git(*arguments: str) -> str | None:
    folder = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _version(library: str) -> str | None:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _driver() -> str | None:
    """The version of NVIDIA's kernel module, as it tells itself."""
    try:
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        return None
