"""What a search has measured: settings, and under each the rate and the latency at every load."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

FORMAT = 1

Settings = dict[str, str]
"""Names of settings and their values as text; what is not there is as the user has it, or auto."""


@dataclass(frozen=True, slots=True)
class Point:
    """One load on one server: connections that each always have a request on its way."""

    connections: int
    texts_per_second: float
    p50_ms: float
    p99_ms: float
    errors: int = 0


@dataclass(frozen=True, slots=True)
class Trial:
    """One server, and what it did; ``fault`` where it did not start.

    again  the same loads on another such server, for those that did best: the best of many
           measurements is more often lucky than not, and what it reaches twice is not luck
    """

    settings: Settings
    points: list[Point]
    fault: str | None = None
    again: list[Point] = field(default_factory=list)

    def best(self, p99_ms: float | None) -> Point | None:
        """The point with the highest rate whose p99 is within the limit, if there is one.

        Of a trial that was measured twice: of the time in which that was lower.
        """
        return _best(self.lower(p99_ms), p99_ms)

    def lower(self, p99_ms: float | None) -> list[Point]:
        """The points of the time that did less well, or of the only one."""
        runs = [self.points, self.again] if self.again else [self.points]
        return min(runs, key=lambda points: _rate(_best(points, p99_ms)))

    def score(self, p99_ms: float | None) -> float:
        """Texts/s within the limit; 0 without a point that is."""
        return _rate(self.best(p99_ms))


def _best(points: list[Point], p99_ms: float | None) -> Point | None:
    within = [
        point for point in points if not point.errors and (p99_ms is None or point.p99_ms <= p99_ms)
    ]
    return max(within, key=lambda point: point.texts_per_second, default=None)


def _rate(point: Point | None) -> float:
    return 0.0 if point is None else point.texts_per_second


@dataclass(frozen=True, slots=True)
class Tuning:
    """A whole search; p99_ms None: throughput alone counted. ``best`` is one of the trials."""

    model: str
    p99_ms: float | None
    fixed: Settings
    trials: list[Trial]
    best: Trial
    run: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT
