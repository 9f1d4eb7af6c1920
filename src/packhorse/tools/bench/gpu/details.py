"""All parts of ``packhorse bench gpu``, one after the other."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from packhorse.tools.bench.climb import say
from packhorse.tools.bench.gpu.latency import measure_latency, measure_thousand
from packhorse.tools.bench.gpu.material import Material
from packhorse.tools.bench.gpu.memory import measure_memory
from packhorse.tools.bench.gpu.padding import count_padding
from packhorse.tools.bench.gpu.precision import measure_precision
from packhorse.tools.bench.gpu.ready import measure_ready
from packhorse.tools.bench.gpu.replicas import measure_replicas
from packhorse.tools.bench.gpu.steady import measure_lengths, measure_steady
from packhorse.tools.bench.preparation import Plan

logger = logging.getLogger(__name__)

Part = Callable[[Material], Any]

PARTS: dict[str, Part] = {
    "ready": measure_ready,  # first, before this process takes anything of the GPU
    "memory": measure_memory,  # and before other engines add to it
    "thousand": measure_thousand,
    "steady": measure_steady,
    "lengths": measure_lengths,
    "latency": measure_latency,
    "precision": measure_precision,
    "padding": count_padding,
    "replicas": measure_replicas,
}


def measure(plan: Plan, parts: dict[str, Part] = PARTS) -> dict[str, Any]:
    """Every part by its name, as JSON has it; one that fails becomes {"fault": why}."""
    with TemporaryDirectory(prefix="packhorse-bench-") as folder:
        material = Material.load(plan, Path(folder))
        results: dict[str, Any] = {"texts": len(material.texts), "model_note": material.note}
        for name, part in parts.items():
            say(f"gpu: {name}")
            try:
                results[name] = msgspec.to_builtins(part(material))
            except Exception as error:  # the other parts are still worth having
                logger.exception("%s failed", name)
                results[name] = {"fault": f"{type(error).__name__}: {error}"}
        material.close()
    return results
