"""How much of a batch fills up the bucket of its captured graph. Counted, not measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packhorse.tools.bench.gpu.material import Material

CONCURRENT = (1, 8, 64)
_DRAWS = 1000


@dataclass(frozen=True, slots=True)
class Padding:
    """Shares of the tokens, and of the rows of the tail, that are filling.

    texts  that form a batch together; None at full load, where batches are as large as they may be
    """

    texts: int | None
    tokens: float
    sequences: float
    worst_tokens: float


def count_padding(material: Material) -> list[Padding]:
    """Over all reviews at full load, and for batches of few texts drawn at random."""
    lengths = material.sequences.lengths
    full = [len(batch) for batch in material.batches.batches(material.sequences)]
    at_full = np.split(lengths, np.cumsum(full)[:-1])
    random = np.random.default_rng(0)
    return [
        _padding(material, None, at_full[:-1] or at_full),  # the last one is what was left
        *(
            _padding(material, n, [random.choice(lengths, n) for _ in range(_DRAWS)])
            for n in CONCURRENT
        ),
    ]


def _padding(
    material: Material, texts: int | None, batches: list[np.ndarray[tuple[int], np.dtype[np.int32]]]
) -> Padding:
    real = np.array([(batch.sum(), len(batch)) for batch in batches])
    computed = np.array(
        [material.batches.padded_sizes(int(tokens), int(rows)) for tokens, rows in real]
    )
    shares = 1 - real.sum(axis=0) / computed.sum(axis=0)
    worst = float((1 - real[:, 0] / computed[:, 0]).max())
    return Padding(texts, float(shares[0]), float(shares[1]), worst)
