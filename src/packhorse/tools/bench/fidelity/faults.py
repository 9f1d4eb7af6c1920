"""Faults planted on purpose: a check that does not see them proves nothing.

Each changes what our side is given: its copy of the checkpoint, or its
tokenised texts. So the same six work on every device and with every kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from packhorse.request import Sequences, bounds_of, counted_positions
from packhorse.tools.bench.fidelity.checkpoints import EPS, altered


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake of an implementer.

    folder     makes a faulty copy of the checkpoint; None: it is not touched
    sequences  makes faulty sequences of the tokenised texts; None: they are not touched
    pairs      whether it shows with pairs only
    """

    name: str
    folder: Callable[[Path, Path], Path] | None = None
    sequences: Callable[[Sequences], Sequences] | None = None
    pairs: bool = False


def _tanh_gelu(folder: Path, target: Path) -> Path:
    return altered(folder, target, hidden_act="gelu_pytorch_tanh")


def _ten_times_eps(folder: Path, target: Path) -> Path:
    return altered(folder, target, layer_norm_eps=10 * EPS)


def _positions_off_by_one(folder: Path, target: Path) -> Path:
    """Position p reads what is learned for p + 1."""
    altered(folder, target)
    path = target / "model.safetensors"
    tensors = {name: tensor.copy() for name, tensor in load_file(path).items()}
    name = next(name for name in tensors if name.endswith("position_embeddings.weight"))
    tensors[name] = np.roll(tensors[name], -1, axis=0)
    save_file(tensors, path, metadata={"format": "pt"})
    return target


def _last_token_lost(sequences: Sequences) -> Sequences:
    kept = np.ones(sequences.num_tokens, np.bool_)
    kept[sequences.cu_seqlens[1:] - 1] = False
    return replace(
        sequences,
        input_ids=sequences.input_ids[kept],
        cu_seqlens=bounds_of(sequences.lengths - np.int32(1)),
    )


def _neighbours_key_visible(sequences: Sequences) -> Sequences:
    """The first token of the next text is one more key, at the position it has there."""
    ends = sequences.cu_seqlens[1:]
    following = np.roll(sequences.cu_seqlens[:-1], -1)
    positions = counted_positions(sequences.cu_seqlens)
    return replace(
        sequences,
        input_ids=np.insert(sequences.input_ids, ends, sequences.input_ids[following]),
        position_ids=np.insert(positions, ends, np.int32(0)),
        cu_seqlens=bounds_of(sequences.lengths + np.int32(1)),
    )


def _segments_ignored(sequences: Sequences) -> Sequences:
    return replace(sequences, segment_starts=None)


FAULTS = (
    Fault("GELU by its tanh approximation", folder=_tanh_gelu),
    Fault("ten times the eps of LayerNorm", folder=_ten_times_eps),
    Fault("positions off by one", folder=_positions_off_by_one),
    Fault("the last token lost", sequences=_last_token_lost),
    Fault("a key of the neighbour visible", sequences=_neighbours_key_visible),
    Fault("segments ignored", sequences=_segments_ignored, pairs=True),
)
