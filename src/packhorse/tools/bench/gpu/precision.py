"""How far half types move the logits, beside Transformers in the same type."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import torch

from packhorse.request import Float32Array
from packhorse.tools.bench.agreement import Agreement, compare, spread_of
from packhorse.tools.bench.gpu.material import Material
from packhorse.tools.bench.programs import Program, builder
from packhorse.tools.bench.programs.switches import OVERLAP
from packhorse.tools.bench.rungs import reference

TEXTS = 2000

HALF_TYPES = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Precision:
    """Of one type: this engine's logits and Transformers', each against float32."""

    dtype: str
    ours: Agreement
    theirs: Agreement | None


def measure_precision(material: Material) -> list[Precision]:
    """Over 2000 reviews; theirs is missing where Transformers is."""
    has_transformers = find_spec("transformers") is not None
    texts = material.texts[:TEXTS]
    rung = reference(material.plan.device)
    expected = _logits(builder(rung.program)(material.place("float32"), rung.off), texts)
    spread = spread_of(expected)
    results = []
    for dtype in HALF_TYPES:
        place = material.place(dtype)
        ours = _logits(builder("packed")(place, (OVERLAP,)), texts)
        theirs = None
        if has_transformers:
            theirs = _logits(builder("sorted")(place, ()), texts)
        results.append(
            Precision(
                dtype,
                compare(ours, expected, spread, dtype),
                None if theirs is None else compare(theirs, expected, spread, dtype),
            )
        )
    return results


def _logits(program: Program, texts: list[str]) -> Float32Array:
    """Its logits; its memory is free again afterwards."""
    logits = program.logits(texts)
    program.close()
    torch.cuda.empty_cache()
    return logits
