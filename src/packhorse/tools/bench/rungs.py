"""The rungs of the ladder: each one change away from the one below."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from importlib.util import find_spec

from packhorse.errors import ConfigError

TRANSFORMERS = "transformers"
COMPILER = "compiler"
"""What a rung may need beyond the package's own requirements: a package by its name, or this."""

HALF = "half"
"""The precision of rungs that run in the half type that was asked for."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One way to do the same work.

    name       in the table and on the command line
    change     one sentence: what differs from the rung below
    program    which of ``bench.programs`` it runs
    precision  a type, or "half": the half type asked for (float32 on a CPU without one)
    off        optimisations of the engine that are still switched off
    needs      what it cannot do without
    """

    name: str
    change: str
    program: str
    precision: str = HALF
    off: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


_GUIDE = (
    Rung(
        "naive",
        "One text at a time in float32, padded to 128 tokens.",
        "naive",
        precision="float32",
        needs=(TRANSFORMERS,),
    ),
    Rung(
        "batched",
        "32 texts at a time, in a half type if there is one, in buffers kept; still padded to 128.",
        "batched",
        needs=(TRANSFORMERS,),
    ),
    Rung(
        "sorted",
        "Transformers at its best: sorted by length, padded to each batch's longest, SDPA.",
        "sorted",
        needs=(TRANSFORMERS,),
    ),
    Rung(
        "compile",
        "torch.compile around the same model.",
        "compile",
        needs=(TRANSFORMERS, COMPILER),
    ),
)

_LATER = ("first-token-only", "fast-tokenizer", "overlap")
"""What the last rungs switch on, one after the other, on every device."""

_ENGINE = (
    Rung(
        "first-token",
        "The last layer computes only what the first tokens need.",
        "packed",
        off=("fast-tokenizer", "overlap"),
    ),
    Rung(
        "tokenizer",
        "nanotoken tokenises, where it gives the same ids as the library tokenizers.",
        "packed",
        off=("overlap",),
    ),
)

CPU_RUNGS = (
    *_GUIDE,
    Rung(
        "packed",
        "This engine instead, with every optimisation that has a switch off: no padding at all.",
        "packed",
        off=("prepacked-weights", "streams", "allocator", *_LATER),
    ),
    Rung(
        "prepacked",
        "Weights are laid out once as oneDNN reads them.",
        "packed",
        off=("streams", "allocator", *_LATER),
    ),
    Rung(
        "streams",
        "Threads run batches of their own, and do not share each operation.",
        "packed",
        off=("allocator", *_LATER),
    ),
    Rung(
        "allocator",
        "Memory that was freed is kept in the process.",
        "packed",
        off=_LATER,
    ),
    *_ENGINE,
    Rung(
        "overlap",
        "The whole library, Encoder.predict_proba: texts are tokenised while batches run.",
        "encoder",
    ),
)

CUDA_RUNGS = (
    *_GUIDE,
    Rung(
        "packed",
        "This engine instead, operation by operation in PyTorch: no padding at all.",
        "packed",
        off=("fused-kernels", "graphs", *_LATER),
    ),
    Rung(
        "fused",
        "Fused Triton kernels for attention and for what lies between the matrix products.",
        "packed",
        off=("graphs", *_LATER),
    ),
    Rung(
        "graphs",
        "Captured CUDA graphs: one launch a batch instead of a hundred.",
        "packed",
        off=_LATER,
    ),
    *_ENGINE,
    Rung(
        "overlap",
        "The whole library, Encoder.predict_proba: the CPU prepares a batch while the GPU has one.",
        "encoder",
    ),
)


def chosen_rungs(device: str, names: str | None) -> list[Rung]:
    """The rungs of a kind of device, or those among them that are named, separated by commas.

    Raises ConfigError for a name that is none of them.
    """
    rungs = CPU_RUNGS if device == "cpu" else CUDA_RUNGS
    if names is None:
        return list(rungs)
    by_name = {rung.name: rung for rung in rungs}
    for name in names.split(","):
        if name not in by_name:
            raise ConfigError(f"rung {name!r} is not one of {', '.join(by_name)}")
    return [rung for rung in rungs if rung.name in names.split(",")]


def obstacle(rung: Rung) -> str | None:
    """Why this installation cannot run a rung; None if it can."""
    for package in rung.needs:
        if package != COMPILER and find_spec(package) is None:
            return f"needs the package {package}: pip install {package}"
    if COMPILER in rung.needs and _compiler() is None:
        return "needs a C++ compiler: install g++ or clang++, or name one in CXX"
    return None


def reference(device: str) -> Rung:
    """What every rung's answers are held against: Transformers if it is installed, else ourselves
    in float32 with every optimisation off."""
    rung = Rung("reference", "Transformers in float32.", "sorted", "float32", needs=(TRANSFORMERS,))
    if obstacle(rung) is None:
        return rung
    lowest = next(rung for rung in chosen_rungs(device, None) if rung.name == "packed")
    return Rung("reference", "This engine in float32.", "packed", "float32", off=lowest.off)


def _compiler() -> str | None:
    names = [os.environ.get("CXX"), "g++", "clang++", "c++"]
    return next((path for name in names if name and (path := shutil.which(name))), None)
