"""``packhorse bench``: how fast, how much of what the device can do, and by which optimisation.

ladder    every rung from the naive loop to the whole library, on one machine in one run
serve     a server under load, as its clients see it
rivals    this engine beside other engines on a CPU, each at its best
gpu       what a GPU reaches by itself, beside what is left of it end to end
fidelity  how far logits are from Transformers', by family, problem, device and type
families  each family on a GPU, beside bert-base and beside Transformers
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

from packhorse.errors import ConfigError
from packhorse.tools.bench.arguments import (
    add_families_arguments,
    add_fidelity_arguments,
    add_gpu_arguments,
    add_ladder_arguments,
)
from packhorse.tools.bench.rivals import arguments as rivals_arguments
from packhorse.tools.bench.serve import arguments as serve_arguments

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommands and their arguments."""
    benches = parser.add_subparsers(
        dest="bench", metavar="BENCH", required=True, help="what to measure"
    )
    ladder = benches.add_parser("ladder", help="every rung, interleaved", description=__doc__)
    add_ladder_arguments(ladder)
    serve = benches.add_parser("serve", help="a server under load", description=__doc__)
    serve_arguments.add_arguments(serve)
    rivals = benches.add_parser("rivals", help="other engines on a CPU", description=__doc__)
    rivals_arguments.add_arguments(rivals)
    gpu = benches.add_parser("gpu", help="the GPU by itself", description=__doc__)
    add_gpu_arguments(gpu)
    families = benches.add_parser("families", help="each family on a GPU", description=__doc__)
    add_families_arguments(families)
    fidelity = benches.add_parser(
        "fidelity", help="logits beside Transformers'", description=__doc__
    )
    add_fidelity_arguments(fidelity)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; 1 when an answer is wrong or a rung failed.

    Raises SetupError for what cannot be measured here.
    """
    if arguments.bench == "serve":
        from packhorse.tools.bench.serve import command

        return command.run(arguments)
    if arguments.bench == "fidelity":
        return _fidelity(arguments)
    if arguments.bench == "rivals":
        from packhorse.tools.bench.rivals import command as rivals_command

        return rivals_command.run(arguments)
    from packhorse.tools.bench import commands

    if arguments.bench == "gpu":
        return commands.gpu(arguments)
    if arguments.bench == "families":
        return commands.families(arguments)
    if arguments.render is not None:
        return commands.render(Path(arguments.render), arguments)
    return commands.ladder(arguments)


def _fidelity(arguments: argparse.Namespace) -> int:
    if find_spec("transformers") is None:
        raise ConfigError("bench fidelity compares with Transformers: pip install transformers")
    from packhorse.tools.bench.fidelity.command import fidelity

    return fidelity(arguments)
