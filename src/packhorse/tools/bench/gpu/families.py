"""`packhorse bench families`: each family beside bert-base, and beside Transformers at its best.

Shares of the matrix product are by nominal FLOPs: what the model needs over
the real tokens, 2 m n k a product, for D hidden, F intermediate and n tokens:

    q, k, v, output         2 n 4 D²
    mlp                     2 n 2 D F, or 2 n 3 D F where it is gated
    QKᵀ and PV              4 D for each pair that is seen: n², fewer in a window
    positions (DeBERTa)     2 n D min(n, 2 S) for each of c2p and p2c, S buckets a direction
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse import Encoder
from packhorse.checkpoint import Architecture
from packhorse.positions import DisentangledPositions, RotaryPositions
from packhorse.request import Int32Array, Sequences
from packhorse.tools.bench.ceilings import Ceilings
from packhorse.tools.bench.climb import say
from packhorse.tools.bench.gpu.material import Material
from packhorse.tools.bench.gpu.steady import gpu_seconds
from packhorse.tools.bench.preparation import Plan
from packhorse.tools.bench.programs import builder
from packhorse.tools.bench.table import aligned
from packhorse.tools.bench.workloads import cut_to

LONG = 512
TOKENS_OF_A_LENGTH = 1 << 18


@dataclass(frozen=True, slots=True)
class FamilyRow:
    """One model.

    reviews_tokens, long_tokens  tokens a second on the GPU alone: reviews, texts of 512 tokens
    reviews_share, long_share    nominal FLOPs a second, of the matrix product's beside it
    ours, theirs                 texts a second from strings to scores, this engine and
                                 Transformers (sorted by length, half type, SDPA where it has it)
    """

    model: str
    note: str
    reviews_tokens: float
    reviews_share: float
    long_tokens: float
    long_share: float
    ours: float
    theirs: float


def nominal_flops(shape: Architecture, lengths: Int32Array) -> int:
    """FLOPs of all layers over texts of these lengths; heads are left out."""
    n = lengths.astype(np.int64)
    width, products = shape.hidden_size, 2
    windows: tuple[int | None, ...] = (None,) * shape.num_layers
    if isinstance(shape.positions, RotaryPositions):
        windows, products = shape.positions.windows, 3
    dense = 8 * width**2 + 2 * products * width * shape.intermediate_size
    total = shape.num_layers * dense * int(n.sum())
    total += sum(4 * width * int(_pairs(n, window).sum()) for window in windows)
    if isinstance(shape.positions, DisentangledPositions):
        tables = shape.positions.score_parts - 1
        entries = int((n * np.minimum(n, 2 * shape.positions.span)).sum())
        total += shape.num_layers * 2 * tables * width * entries
    return total


def measure_families(plan: Plan, models: Sequence[str], texts: int) -> list[FamilyRow]:
    """One row a model, one model on the GPU at a time.

    Raises ConfigError or CheckpointError.
    """
    rows = []
    for model in models:
        say(f"families: {model}")
        with TemporaryDirectory(prefix="packhorse-bench-") as folder:
            rows.append(_measure(replace(plan, model=model), Path(folder), texts))
        torch.cuda.empty_cache()
    return rows


def report_families(rows: Sequence[FamilyRow]) -> str:
    """A table; shares of peak at 512 are also of the first row's."""
    head = ["model", "reviews tokens/s", "of product", "512 tokens/s", "of product", "of first"]
    head += ["texts/s", "Transformers", "times"]
    body = [
        [
            row.model,
            f"{row.reviews_tokens:,.0f}",
            f"{100 * row.reviews_share:.1f}%",
            f"{row.long_tokens:,.0f}",
            f"{100 * row.long_share:.1f}%",
            f"{row.long_share / rows[0].long_share:.2f}",
            f"{row.ours:,.0f}",
            f"{row.theirs:,.0f}",
            f"{row.ours / row.theirs:.1f}",
        ]
        for row in rows
    ]
    return aligned([head, *body])


def _pairs(n: NDArray[np.int64], window: int | None) -> NDArray[np.int64]:
    """Pairs of a query and a key that it sees, in texts of n tokens."""
    w = n - 1 if window is None else np.minimum(window, n - 1)
    pairs: NDArray[np.int64] = n * (2 * w + 1) - w * (w + 1)
    return pairs


def _measure(plan: Plan, folder: Path, count: int) -> FamilyRow:
    material = Material.load(plan, folder)
    try:
        reviews = _rate(plan, material, material.sequences)
        cut = cut_to(material.sequences, LONG, TOKENS_OF_A_LENGTH // LONG)
        long = _rate(plan, material, cut)
    finally:
        material.close()
    note, texts = material.note, material.texts[:count]
    place = material.place()
    del material
    torch.cuda.empty_cache()
    with Encoder(place.folder, plan.device, plan.dtype) as encoder:
        ours = _texts_per_second(encoder.predict_proba, texts, plan.rounds)
    torch.cuda.empty_cache()
    program = builder("sorted")(place, ())
    theirs = _texts_per_second(program.predict, texts, min(2, plan.rounds))
    program.close()
    return FamilyRow(plan.model, note, *reviews, *long, ours, theirs)


def _rate(plan: Plan, material: Material, sequences: Sequences) -> tuple[float, float]:
    """Tokens a second of the GPU alone, and its share of a matrix product measured beside it."""
    batches = list(material.batches.batches(sequences))
    gpu_seconds(material.runner, batches)
    times = [gpu_seconds(material.runner, batches) for _ in range(plan.rounds)]
    peak = Ceilings(plan.device, [plan.dtype], plan.threads).measure()[plan.dtype].flops
    seconds = median(times)
    flops = nominal_flops(material.checkpoint.architecture, sequences.lengths)
    return sequences.num_tokens / seconds, flops / seconds / peak


def _texts_per_second(
    predict: Callable[[list[str]], object], texts: list[str], rounds: int
) -> float:
    predict(texts)  # compiles, fills caches
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        predict(texts)
        times.append(time.perf_counter() - started)
    return len(texts) / median(times)
