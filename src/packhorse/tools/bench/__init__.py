"""``packhorse bench``: how fast, how much of what the device can do, and by which optimisation.

ladder  every rung from the naive loop to the whole library, on one machine in one run
serve   a server under load, as its clients see it
gpu     what a GPU reaches by itself, beside what is left of it end to end
"""

from __future__ import annotations

import argparse
from pathlib import Path

from packhorse.tools.bench.arguments import add_gpu_arguments, add_ladder_arguments
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
    gpu = benches.add_parser("gpu", help="the GPU by itself", description=__doc__)
    add_gpu_arguments(gpu)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; 1 when an answer is wrong or a rung failed.

    Raises SetupError for what cannot be measured here.
    """
    if arguments.bench == "serve":
        from packhorse.tools.bench.serve import command

        return command.run(arguments)
    from packhorse.tools.bench import commands

    if arguments.bench == "gpu":
        return commands.gpu(arguments)
    if arguments.render is not None:
        return commands.render(Path(arguments.render), arguments)
    return commands.ladder(arguments)
