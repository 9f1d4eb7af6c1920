"""The arguments of ``packhorse bench``, and the plan they make."""

from __future__ import annotations

import argparse
from pathlib import Path

from packhorse.config import AUTO, Config, ModelOptions, resolve
from packhorse.errors import ConfigError
from packhorse.hardware import detect
from packhorse.tools.argument_types import positive
from packhorse.tools.demo_split import REVIEWS

ON_CPU = {"naive": 50, "batched": 128}
"""Texts a round of the rungs that are slow on a CPU, unless --subset says otherwise."""


def add_ladder_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of ``bench ladder``."""
    _add_common(parser)
    parser.add_argument("--rungs", help="only these, separated by commas; all without it")
    parser.add_argument(
        "--workloads", default="seed,reviews", help="separated by commas (default: %(default)s)"
    )
    parser.add_argument("--texts", type=positive, default=1000, help="in each workload")
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument(
        "--subset",
        action="append",
        default=[],
        metavar="RUNG=TEXTS",
        help="give a slow rung only so many texts a round and scale its time up; on a CPU "
        f"{', '.join(f'{name}={count}' for name, count in ON_CPU.items())} unless given",
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the ladder as a picture")
    parser.add_argument(
        "--details",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="on a GPU, measure what `bench gpu` does after the ladder (default: yes)",
    )
    parser.add_argument(
        "--render",
        type=Path,
        metavar="FILE",
        help="measure nothing: print the table of this JSON file and draw it again",
    )


def add_gpu_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of ``bench gpu``."""
    _add_common(parser)
    parser.add_argument("--rounds", type=positive, default=5)


def add_fidelity_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of ``bench fidelity``."""
    parser.add_argument(
        "--workers",
        type=positive,
        default=1,
        help="families measured at a time, each in a process of its own (default: %(default)s)",
    )
    parser.add_argument("--families", help="only these, separated by commas; all without it")
    parser.add_argument("--problems", help="only these, separated by commas; all without it")
    parser.add_argument("--texts", type=positive, default=1024, help="(default: %(default)s)")
    parser.add_argument(
        "--device",
        default=AUTO,
        help="cpu, cuda or cuda:N; auto: the CPU, and a GPU where there is one",
    )
    _add_recorded(parser)


def add_families_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of ``bench families``."""
    _add_common(parser)
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument(
        "--models",
        default="bert-base,modernbert-base,deberta-v3-base",
        help="shapes or folders, separated by commas; the first is what shares of peak are "
        "compared with (default: %(default)s)",
    )
    parser.add_argument(
        "--reviews-texts", type=positive, default=4000, help="reviews of the comparison"
    )


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default="bert-base", help="a shape or a folder (default: %(default)s)"
    )
    parser.add_argument("--device", default=AUTO, help="auto, cpu, cuda or cuda:N")
    parser.add_argument(
        "--dtype",
        default=AUTO,
        choices=(AUTO, "float32", "float16", "bfloat16"),
        help="the half type; auto: float16 on a GPU, bfloat16 on a CPU that multiplies it",
    )
    _add_recorded(parser)


def _add_recorded(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=positive, help="on a CPU; all cores without it")
    parser.add_argument("--reviews", type=Path, default=REVIEWS, metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    parser.add_argument("--commit", help="what to record where the sources are no git checkout")


def resolved_device(device: str) -> str:
    """cpu or cuda:N.

    Raises ConfigError when that GPU is not there.
    """
    return resolve(Config(ModelOptions(device=device)), detect()).model.device


def subsets(given: list[str], device: str) -> dict[str, int]:
    """Texts a round by rung.

    Raises ConfigError for what is not RUNG=TEXTS.
    """
    counts = dict(ON_CPU) if device == "cpu" else {}
    for entry in given:
        name, _, count = entry.partition("=")
        if not name or not count.isdigit() or int(count) < 1:
            raise ConfigError(f"--subset {entry}: write RUNG=TEXTS, for example naive=100")
        counts[name] = int(count)
    return counts
