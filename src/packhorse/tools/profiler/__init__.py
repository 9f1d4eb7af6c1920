"""``packhorse profile``: a forward pass of a model, operation by operation.

A table with bytes, FLOPs, time and distance from the roofline; a trace for
Perfetto; ranges for Nsight Systems; a flame graph where py-spy is installed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from packhorse.tools.argument_types import positive
from packhorse.tools.option_flags import add_model_argument, add_settings, read_settings

if TYPE_CHECKING:
    from packhorse.tools.profiler.roofline import Profile
    from packhorse.tools.profiler.subject import Subject

__all__ = ["add_arguments", "configured_subject", "run"]

TOKENS = {"cpu": 1024, "cuda": 16384}
"""Of the batch, unless told: some tens of milliseconds for a small model."""

ROUNDS = 7

FILES = ("profile.json", "trace.json", "flame.svg")
"""What is written into the folder of -o."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A model, the texts, the folder for the files, the settings of model and engine."""
    add_model_argument(parser)
    parser.add_argument(
        "--texts", type=Path, metavar="FILE", help="your texts, one a line; ours without it"
    )
    parser.add_argument(
        "--tokens", type=positive, metavar="N", help="in the batch; 1024 on a CPU, 16384 on a GPU"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FOLDER",
        help=f"for {', '.join(FILES)}",
    )
    add_settings(parser, ("model", "engine"))


def run(arguments: argparse.Namespace) -> int:
    """Profile, print, write.

    Raises SetupError for a model or device that cannot be used.
    """
    from packhorse.tools.profiler.table import table

    words = sys.argv[sys.argv.index("profile") + 1 :] if "profile" in sys.argv else []
    print(table(profiled(arguments, words)))
    return 0


def profiled(arguments: argparse.Namespace, words: list[str]) -> Profile:
    """The profile, its files written; ``words`` are the arguments as they were typed."""
    import msgspec

    from packhorse.tools.output_files import check_outputs
    from packhorse.tools.profiler.flame_graph import write_flame_graph
    from packhorse.tools.profiler.measure import measure
    from packhorse.tools.profiler.trace import write_trace

    folder: Path | None = arguments.output
    if folder is not None:
        check_outputs(*(folder / name for name in FILES))
    subject = configured_subject(arguments)
    profile = measure(subject, ROUNDS)
    if folder is None:
        return profile
    write_trace(subject, folder / "trace.json")
    profile.files["trace"] = str(folder / "trace.json")
    fault = write_flame_graph(words, folder / "flame.svg")
    if fault is None:
        profile.files["flame graph"] = str(folder / "flame.svg")
    else:
        profile.skipped.append(fault)
    shown = msgspec.json.format(msgspec.json.encode(profile), indent=1)
    (folder / "profile.json").write_bytes(shown + b"\n")
    return profile


def configured_subject(arguments: argparse.Namespace) -> Subject:
    """The model and batch that the arguments ask for. Raises SetupError."""
    from packhorse.config import resolve
    from packhorse.hardware import detect
    from packhorse.tools.doctor.sample_texts import sample_texts
    from packhorse.tools.profiler.subject import subject

    config = resolve(read_settings(arguments), detect())
    tokens = arguments.tokens or TOKENS[config.model.device.partition(":")[0]]
    return subject(config, sample_texts(arguments.texts), tokens)
