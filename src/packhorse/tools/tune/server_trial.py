"""One trial: a server with certain settings, put under load by ``bench serve``'s generator."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.errors import ConfigError
from packhorse.tools.bench.serve.arguments import default_processes
from packhorse.tools.bench.serve.command import measure
from packhorse.tools.bench.serve.plan import Plan
from packhorse.tools.bench.serve.served import served
from packhorse.tools.bench.serve.target import Target, target_of
from packhorse.tools.tune.loads import climb
from packhorse.tools.tune.results import Point, Settings, Trial

WARM_UP = 0.5
"""Seconds of every load before the clock starts."""

PATIENCE = 30.0
"""Seconds after which a request is given up: the latency of a load of which none was answered."""


def trial(
    settings: Settings,
    arguments: Sequence[str],
    texts: Sequence[str],
    route: str,
    seconds: float,
    p99_ms: float | None,
) -> Trial:
    """Serve with these settings, and with ``arguments`` besides, and climb through the loads.

    ``seconds`` are those of one load. Equal texts are all computed, as in every benchmark.
    """
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    try:
        with served([*arguments, *flags, "--no-dedup", "--log-level=warning"]) as server:
            target = target_of(server.url)
            points = climb(
                lambda connections: _load(target, texts, route, connections, seconds), p99_ms
            )
    except ConfigError as error:
        return Trial(settings, [], str(error))
    return Trial(settings, points)


def _load(
    target: Target, texts: Sequence[str], route: str, connections: int, seconds: float
) -> Point:
    report = measure(
        Plan(
            target=target,
            route=route,
            headers=(),
            texts=tuple(texts),
            bodies=(),
            batches=(1,),
            distinct=len(texts),
            connections=connections,
            rate=None,
            processes=min(connections, default_processes()),
            warm_up=WARM_UP,
            duration=seconds,
            timeout=PATIENCE,
        )
    )
    latency = report["latency_ms"] or {"p50": 1000 * PATIENCE, "p99": 1000 * PATIENCE}
    bad = sum(report["errors"].values()) + report["sent"] - report["answered_2xx"]
    return Point(connections, report["texts_per_second"], latency["p50"], latency["p99"], bad)
