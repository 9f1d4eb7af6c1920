"""The arguments of ``packhorse bench serve``, and the plan they make."""

from __future__ import annotations

import argparse
from pathlib import Path

from packhorse.errors import ConfigError
from packhorse.hardware import detect
from packhorse.tools.argument_types import above_zero, at_least_zero, positive
from packhorse.tools.bench.serve.bodies import ROUTES, check_plan, read_bodies, read_texts
from packhorse.tools.bench.serve.plan import Plan
from packhorse.tools.bench.serve.target import Target

MOST_PROCESSES = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All of them; what stands after ``--`` is for ``packhorse serve``."""
    where = parser.add_argument_group("target")
    where.add_argument(
        "--url",
        help="http://HOST:PORT, https://HOST:PORT or unix:PATH; without it a server is started "
        "on a free port, with the arguments after --",
    )
    where.add_argument("serve", nargs="*", metavar="-- ARGUMENTS", help="of `packhorse serve`")
    where.add_argument("--insecure", action="store_true", help="do not check the certificate")
    where.add_argument("--api-key", help="sent as Authorization: Bearer")
    where.add_argument("--header", action="append", default=[], metavar="NAME:VALUE")
    asked = parser.add_argument_group("requests")
    asked.add_argument("--route", default="/predict", help="default: %(default)s")
    asked.add_argument(
        "--batch", default="1", metavar="TEXTS", help="texts a request; 1,8,32 for sizes in turn"
    )
    asked.add_argument(
        "--distinct", type=positive, default=10_000, metavar="BODIES", help="default: %(default)s"
    )
    asked.add_argument(
        "--texts", type=Path, metavar="FILE", help="a text a line; a checkout's reviews without it"
    )
    asked.add_argument(
        "--body-file", type=Path, metavar="FILE", help=f"a JSON body a line, for routes other than "
        f"{', '.join(ROUTES)}",
    )  # fmt: skip
    load = parser.add_argument_group("load")
    load.add_argument(
        "--rate", type=above_zero, metavar="REQUESTS/S",
        help="open loop: requests are due at the moments of a Poisson process, and latency counts "
        "from there; without it a closed loop: each connection asks again when it has its answer",
    )  # fmt: skip
    load.add_argument(
        "--connections", type=positive,
        help="default: 64, in an open loop as many as may be on their way at once, 1024",
    )  # fmt: skip
    load.add_argument("--processes", type=positive, help="of the load generator")
    load.add_argument("--warm-up", type=at_least_zero, default=2.0, metavar="S", help="%(default)s")
    load.add_argument("--duration", type=above_zero, default=10.0, metavar="S", help="%(default)s")
    load.add_argument(
        "--timeout", type=above_zero, default=30.0, metavar="S",
        help="give a request up after so long (default: %(default)s)",
    )  # fmt: skip
    load.add_argument("--deadline-ms", type=above_zero, metavar="MS", help="what counts as goodput")
    load.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report to this file")


def plan_of(arguments: argparse.Namespace, target: Target) -> Plan:
    """The plan, every default decided.

    Raises ConfigError.
    """
    has_bodies = arguments.body_file is not None
    connections = arguments.connections or (64 if arguments.rate is None else 1024)
    plan = Plan(
        target=target,
        route=arguments.route,
        headers=_headers(arguments),
        texts=() if has_bodies else read_texts(arguments.texts),
        bodies=read_bodies(arguments.body_file) if has_bodies else (),
        batches=_batches(arguments.batch),
        distinct=arguments.distinct,
        connections=connections,
        rate=arguments.rate,
        processes=min(connections, arguments.processes or default_processes()),
        warm_up=arguments.warm_up,
        duration=arguments.duration,
        timeout=arguments.timeout,
        seed=arguments.seed,
    )
    check_plan(plan)
    return plan


def default_processes() -> int:
    """A quarter of the cores: the server is usually on the same machine."""
    return max(1, min(MOST_PROCESSES, detect().cpus // 4))


def _headers(arguments: argparse.Namespace) -> tuple[tuple[str, str], ...]:
    headers = []
    for entry in arguments.header:
        name, colon, value = entry.partition(":")
        if not colon or not name.strip() or not f"{name}{value}".isprintable():
            raise ConfigError(f"--header {entry!r}: write NAME:VALUE")
        headers.append((name.strip(), value.strip()))
    if arguments.api_key is not None:
        headers.append(("authorization", f"Bearer {arguments.api_key}"))
    return tuple(headers)


def _batches(text: str) -> tuple[int, ...]:
    sizes = text.split(",")
    if not all(size.isdecimal() and int(size) for size in sizes):
        raise ConfigError(f"--batch {text}: write a number of texts, or several: 1,8,32")
    return tuple(map(int, sizes))
