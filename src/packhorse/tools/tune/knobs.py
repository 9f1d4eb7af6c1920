"""Which settings are turned, and the values that are tried on this machine."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from packhorse.config import AUTO, Config
from packhorse.hardware import Hardware

CHOSEN_HERE = ("port", "hostname")
"""Settings of a server that is tried which no search turns."""


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting and the values to try; the first is where a search begins."""

    name: str
    values: tuple[str, ...]


def knobs_for(config: Config, hardware: Hardware, fixed: Collection[str]) -> list[Knob]:
    """All but the settings that are fixed, those first that usually matter most.

    config  resolved: what "auto" stands for is not tried a second time by its number

    A type of lower precision than "auto" takes is not tried: it would change answers.
    """
    cpus = hardware.cpus
    on_gpu = config.model.device.startswith("cuda")
    counts = {n for n in (1, 2, 4, 8, cpus // 4, cpus // 2) if 1 <= n <= cpus}
    front_ends = sorted(counts - {config.server.front_ends})
    knobs = [
        Knob("max_batch_time", _first(AUTO, ("2", "12") if on_gpu else ("10", "25", "100"))),
        Knob("front_ends", _first(AUTO, map(str, front_ends))),
        Knob("max_batch_tokens", _first(AUTO, ("4096", "16384") if on_gpu else ("1024", "16384"))),
    ]
    if not on_gpu:
        fewer = {max(1, cpus - 1), max(1, cpus // 2)} - {cpus}
        knobs.append(Knob("threads", _first(AUTO, map(str, sorted(fewer)))))
    if on_gpu or hardware.native_bfloat16:
        knobs.append(Knob("dtype", (AUTO, "bfloat16" if on_gpu else "float32")))
    return [knob for knob in knobs if knob.name not in fixed and len(knob.values) > 1]


def _first(value: str, others: Collection[str] | map[str]) -> tuple[str, ...]:
    return (value, *others)
