"""What a run under load is: target, bodies, loop, how long."""

from __future__ import annotations

from dataclasses import dataclass

from packhorse.tools.bench.serve.target import Target


@dataclass(frozen=True, slots=True)
class Plan:
    """All that the load processes have to know; it is pickled to them. Times are in seconds.

    texts         of which bodies are made, or
    bodies        ready-made ones, as JSON
    batches       texts a request, in turn
    distinct      number of different bodies
    connections   of all processes together: in a closed loop each always has a request on its
                  way, in an open loop they are the most requests that are on their way at once
    rate          requests a second of all processes together, or None for a closed loop
    timeout       a request that has no answer after so long is given up
    """

    target: Target
    route: str
    headers: tuple[tuple[str, str], ...]
    texts: tuple[str, ...]
    bodies: tuple[bytes, ...]
    batches: tuple[int, ...]
    distinct: int
    connections: int
    rate: float | None
    processes: int
    warm_up: float
    duration: float
    timeout: float
    seed: int = 0

    def connections_of(self, process: int) -> int:
        """The part of one process."""
        each, more = divmod(self.connections, self.processes)
        return each + (process < more)
