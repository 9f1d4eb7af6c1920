"""Which loads a server is put under: more and more connections, then between the last two."""

from __future__ import annotations

from collections.abc import Callable

from packhorse.tools.tune.results import Point

MOST = 512
"""Connections."""

GAIN = 1.03
"""Twice as many connections have to bring 3%, or the server is at its limit."""

Load = Callable[[int], Point]


def climb(load: Load, p99_ms: float | None) -> list[Point]:
    """Double the connections while the rate grows and p99 is within the limit.

    Where the limit was passed, two more points between the last two loads
    narrow down how much is possible.
    """
    points = [load(1)]
    while points[-1].connections < MOST and _is_within(points[-1], p99_ms):
        following = load(2 * points[-1].connections)
        has_gained = following.texts_per_second >= GAIN * points[-1].texts_per_second
        points.append(following)
        if not has_gained and following.connections > 4:
            break
    if not _is_within(points[-1], p99_ms) and len(points) > 1:
        low, high = points[-2].connections, points[-1].connections
        for _ in range(2):
            middle = (low + high) // 2
            if middle in (low, high):
                break
            points.append(load(middle))
            low, high = (middle, high) if _is_within(points[-1], p99_ms) else (low, middle)
    return points


def _is_within(point: Point, p99_ms: float | None) -> bool:
    return not point.errors and (p99_ms is None or point.p99_ms <= p99_ms)
