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
    """One server, and what it did; ``fault`` where it did not start."""

    settings: Settings
    points: list[Point]
    fault: str | None = None

    def best(self, p99_ms: float | None) -> Point | None:
        """The point with the highest rate whose p99 is within the limit, if there is one."""
        within = [
            point
            for point in self.points
            if not point.errors and (p99_ms is None or point.p99_ms <= p99_ms)
        ]
        return max(within, key=lambda point: point.texts_per_second, default=None)

    def score(self, p99_ms: float | None) -> float:
        """Texts/s within the limit; 0 without a point that is."""
        best = self.best(p99_ms)
        return 0.0 if best is None else best.texts_per_second


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
