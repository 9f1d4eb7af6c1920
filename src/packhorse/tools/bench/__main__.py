"""``python -m packhorse.tools.bench``, as ``packhorse bench``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from packhorse.errors import PackhorseError
from packhorse.tools.bench import add_arguments, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, run, and say in one line what cannot be measured; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m packhorse.tools.bench")
    add_arguments(parser)
    try:
        return run(parser.parse_args(arguments))
    except PackhorseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
