"""Whether processes that wait look for work without pause, for a moment, before they sleep.

Waking a sleeping process takes 15 to 60 µs, and what it runs next finds cold caches.
One client that asks again and again wakes three processes a request, on a GPU for a
forward pass of 300 µs. Where there are cores to spare they stay awake for it. On a CPU
the core that looks is one that does not compute.
"""

from __future__ import annotations

from packhorse.config import Config

POLL_SECONDS = 0.001
"""How long after the last news."""

CORES_A_PROCESS = 2
"""Half of the cores stay free for clients and for whatever else runs there."""


def polls_busily(config: Config, cores: int) -> bool:
    """For a resolved config, on ``cores`` that may be used."""
    processes = int(config.server.front_ends) + 1
    return (
        config.model.device != "cpu"
        and "busy-polling" not in config.engine.without
        and cores >= CORES_A_PROCESS * processes
    )
