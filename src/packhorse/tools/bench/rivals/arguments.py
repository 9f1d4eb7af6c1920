"""The arguments of `packhorse bench rivals`."""

from __future__ import annotations

import argparse
from pathlib import Path

from packhorse.tools.argument_types import positive
from packhorse.tools.demo_split import REVIEWS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of ``bench rivals``."""
    parser.add_argument(
        "--model", default="minilm-l6", help="a shape or a folder (default: %(default)s)"
    )
    parser.add_argument("--threads", type=positive, default=2, help="default: %(default)s")
    parser.add_argument(
        "--cores",
        metavar="LIST",
        help="numbers of cores that all are held to, by commas; the idlest without it",
    )
    parser.add_argument("--texts", type=positive, default=1000)
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument(
        "--naive-texts",
        type=positive,
        default=50,
        help="texts a round for naive, whose time is scaled up (default: %(default)s)",
    )
    parser.add_argument(
        "--only",
        metavar="NAMES",
        help="only these configurations, separated by commas; openvino stands for all of OpenVINO",
    )
    parser.add_argument(
        "--tune", action="store_true", help="let each rival choose 16, 32 or 64 texts a batch first"
    )
    parser.add_argument(
        "--no-amx", action="store_true", help="as on a processor without AMX, for all of them"
    )
    parser.add_argument("--reviews", type=Path, default=REVIEWS, metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    parser.add_argument("--commit", help="what to record where the sources are no git checkout")
