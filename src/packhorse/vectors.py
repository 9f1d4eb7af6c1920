"""What is done with embeddings after the model: length, dimensions, output types, similarity."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, SupportsIndex, get_args

import numpy as np
from numpy.typing import NDArray

from packhorse.errors import ValidationError
from packhorse.request import Answer, Float32Array, Int32Array, bounds_of

OutputType = Literal["float32", "float16", "int8", "uint8", "binary", "ubinary"]
"""How numbers are stored. int8 and uint8: 256 steps over -1 to 1, which normalised vectors stay
within; binary and ubinary: a bit for each number, 1 where it is positive, eight to a byte."""

OUTPUT_TYPES: tuple[OutputType, ...] = get_args(OutputType)

SMALLEST = 1e-12
"""A vector shorter than that is divided by it instead, as by torch.nn.functional.normalize."""


@dataclass(frozen=True, slots=True)
class SparseVector:
    """A vector of which most numbers are 0: those that are not, in order of their places.

    indices  int32 (K,)    ascending; of SPLADE, ids of tokens of the vocabulary
    values   float32 (K,)  none of them 0
    """

    indices: Int32Array
    values: Float32Array


def sparse_vectors(answer: Answer, most: int | None = None) -> list[SparseVector]:
    """The vectors of an answer whose rows are pairs of place and value, float32 (R, 2).

    ``most``: how many values of each stay, the largest, as sentence-transformers'
    ``max_active_dims`` has it; None for all.
    """
    assert answer.row_counts is not None
    bounds = bounds_of(answer.row_counts).tolist()
    indices = answer.values[:, 0].astype(np.int32)
    values = np.ascontiguousarray(answer.values[:, 1])
    vectors = [
        SparseVector(indices[start:stop], values[start:stop]) for start, stop in pairwise(bounds)
    ]
    return vectors if most is None else [_largest(vector, most) for vector in vectors]


def _largest(vector: SparseVector, most: int) -> SparseVector:
    """The first of those that are equal, where not all of them have room."""
    kept = np.sort(np.argsort(-vector.values, kind="stable")[:most])
    return SparseVector(vector.indices[kept], vector.values[kept])


def finished(
    vectors: Float32Array, *, normalize: bool, dimensions: int | None = None
) -> Float32Array:
    """The first ``dimensions`` numbers of each vector, float32 (n, d); length 1 if ``normalize``.

    Raises ValidationError for more dimensions than there are, or none.
    """
    if dimensions is not None:
        vectors = vectors[:, : checked_dimensions(dimensions, vectors.shape[1])]
    return normalized(vectors) if normalize else vectors


def checked_dimensions(dimensions: int, width: int) -> int:
    """Raises ValidationError unless a vector of ``width`` numbers has so many."""
    if not isinstance(dimensions, SupportsIndex) or not 1 <= dimensions <= width:
        raise ValidationError(
            f"`dimensions` is {dimensions}; this model's vectors have {width} numbers, so 1 to "
            f"{width} are possible"
        )
    return dimensions


def normalized(vectors: Float32Array) -> Float32Array:
    """Each row divided by its length, float32; a row of zeros stays one."""
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
    shortened: Float32Array = (vectors / np.maximum(lengths, SMALLEST)[:, None]).astype(np.float32)
    return shortened


def quantized(vectors: Float32Array, output_type: OutputType) -> NDArray[np.generic]:
    """The vectors in another type, (n, d); of bits (n, ceil(d / 8)).

    As ``quantize_embeddings`` of sentence-transformers does it with the ranges -1 to 1 (the result
    for a text must not depend on which others are asked for with it). Raises ValidationError.
    """
    if output_type == "float32":
        return vectors
    if output_type == "float16":
        return vectors.astype(np.float16)
    if output_type == "ubinary":
        bits: NDArray[np.uint8] = np.packbits(vectors > 0, axis=-1)
        return bits
    if output_type == "binary":
        return (np.packbits(vectors > 0, axis=-1).astype(np.int16) - 128).astype(np.int8)
    if output_type not in OUTPUT_TYPES:
        raise ValidationError(
            f"output type {output_type!r} is not one of {', '.join(OUTPUT_TYPES)}"
        )
    step = np.float32(2) / np.float32(255)
    steps: Float32Array = np.clip(np.floor((vectors + np.float32(1)) / step), 0, 255)
    if output_type == "uint8":
        return steps.astype(np.uint8)
    return (steps - 128).astype(np.int8)


def cosine(first: Float32Array, second: Float32Array) -> Float32Array:
    """The cosine of every pair, float32 (n, m), of vectors (n, d) and (m, d)."""
    return normalized(first) @ normalized(second).T


def paired_cosine(first: Float32Array, second: Float32Array) -> Float32Array:
    """The cosine of each vector with the one of the same place, float32 (n,), of (n, d) twice."""
    cosines: Float32Array = np.einsum("ij,ij->i", normalized(first), normalized(second))
    return cosines
