"""Forward passes for some seconds, to be watched: ``python -m packhorse.tools.profiler.passes``."""

from __future__ import annotations

import argparse
import sys
import time

from packhorse.tools.profiler import add_arguments, configured_subject


def main(words: list[str]) -> None:
    """Seconds, then the arguments of ``packhorse profile``."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    subject = configured_subject(parser.parse_args(words[1:]))
    end = time.monotonic() + float(words[0])
    while time.monotonic() < end:
        subject.seconds()


if __name__ == "__main__":
    main(sys.argv[1:])
