"""Tile sizes of the kernels, pinned. Nothing is tuned while serving.

A tile chosen by timing candidates at start-up makes the first minute slow and
the numbers of two servers differ in their last bits. These come from
``benchmarks/kernels.py --sweep`` on the GPU that is named beside each table;
other GPUs get the tiles that are safe everywhere (small enough for 100 KB of
shared memory), until somebody sweeps them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import torch


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program takes: ``rows`` x ``columns`` elements (or queries x keys)."""

    rows: int
    columns: int
    num_warps: int
    num_stages: int = 1


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """Queries of one program, and the two loops over its keys: blocks and blocks in flight.

    ``open`` is the loop over keys that every query of the tile sees, ``edge``
    the masked one over the rest.
    """

    rows: int
    num_warps: int
    open_keys: int
    open_stages: int
    edge_keys: int
    edge_stages: int


@dataclass(frozen=True, slots=True)
class ProductTile:
    """Rows x columns of a matrix product that one program computes, ``depth`` at a step.

    resident  as many programs as multiprocessors, each of which takes one tile after the other
    """

    rows: int
    columns: int
    depth: int
    num_warps: int
    num_stages: int
    group: int = 8
    resident: bool = False


@dataclass(frozen=True, slots=True)
class FewRowsTile:
    """Rows x columns of a product of few rows, ``depth`` at a step of the sum.

    The sum is parted among ``parts`` programs where their results are added later.
    """

    rows: int
    columns: int
    depth: int
    parts: int
    num_warps: int
    num_stages: int


HOPPER = 9
FEW_ROWS = 128
"""Rows up to which weights, and not operations, are what a dense layer costs."""

FEW_ROWS_STEPS = (8, 16, 64, FEW_ROWS)
"""Up to these numbers of rows the tiles are the same: a kernel each to compile."""

FEW_GATED_ROWS = 64
"""The same for a gated one, of which the next kernel is known to be quick with more."""

# Safe on every GPU from compute capability 8.0. Half types.
ATTENTION = AttentionTile(64, 4, 32, 2, 32, 2)
# float32 multiplies on the CUDA cores: small tiles, or the registers spill.
ATTENTION_FLOAT32 = AttentionTile(32, 4, 32, 1, 32, 1)
# One H200, by padded head size: between short texts and sequences of 512 tokens.
ATTENTION_HOPPER = {
    64: AttentionTile(64, 4, 64, 3, 32, 3),
    32: AttentionTile(64, 4, 32, 3, 32, 3),
    128: AttentionTile(64, 4, 32, 3, 32, 3),
}


# One H200, 16 to 128 tokens, heads of 64: more programs, and one step over a short text's keys.
ATTENTION_FEW_ROWS = AttentionTile(32, 4, 64, 2, 64, 2)


def attention(dtype: torch.dtype, block_head: int, generation: int, tokens: int) -> AttentionTile:
    """The tile of ``packed_attention`` for a head size padded to ``block_head``."""
    if dtype == torch.float32:
        return ATTENTION_FLOAT32
    if generation != HOPPER:
        return ATTENTION
    if block_head == 64 and tokens <= FEW_ROWS:
        return ATTENTION_FEW_ROWS
    return ATTENTION_HOPPER.get(block_head, ATTENTION)


# One H200 (132 multiprocessors), 768 to 3,072 columns, by how many tiles of 128 x 128 the
# product has: few tiles are made smaller, so that all multiprocessors have some. Many: 94.8 us at
# 11,264 rows, and 100.6 us without programs that stay.
LINEAR_ACTIVATION_HOPPER = (
    (64, ProductTile(64, 64, 128, 4, 3)),
    (128, ProductTile(64, 64, 64, 4, 4)),
    (256, ProductTile(128, 64, 64, 4, 3)),
    (512, ProductTile(128, 128, 64, 8, 3, group=4)),
    (math.inf, ProductTile(128, 256, 64, 8, 4, group=4, resident=True)),
)


def linear_activation(
    dtype: torch.dtype, rows: int, width: int, generation: int
) -> ProductTile | None:
    """The tile of the fused product (rows, width); None where the library's product is used."""
    if generation != HOPPER or dtype == torch.float32:
        return None
    size = rows * width / 128**2
    return next(tile for most, tile in LINEAR_ACTIVATION_HOPPER if size <= most)


CACHE_SHARE = 0.65
"""How much of the L2 the activations between two products take, to be still there.

One H200, bert-base, texts/s with one and two pieces: 11,264 tokens 111.4 and 112.9 thousand,
16,384 tokens 111.0 and 111.9; but 8,192 tokens 107.5 and 106.5: a piece is never less.
"""


def feed_forward_rows(rows: int, row_bytes: int, cache_bytes: int) -> int:
    """Rows of a feed-forward layer at a time: equal pieces, of whole tiles of 128 rows.

    row_bytes    what one row has between the two products
    cache_bytes  of L2; 0 where it is not known: all rows at once
    """
    share = int(CACHE_SHARE * cache_bytes)
    pieces = max(1, rows * row_bytes // share) if share else 1
    return max(1, math.ceil(rows / pieces / 128) * 128)


@cache
def multiprocessors(device: torch.device) -> int:
    """How many a GPU has; 4 where there is none (interpreted kernels)."""
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def cache_bytes(device: torch.device) -> int:
    """Bytes of L2; 0 without a GPU."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


def linear_gated(dtype: torch.dtype, rows: int, width: int, generation: int) -> ProductTile | None:
    """The tile of the gated product (rows, width), whose two sums a program holds at once."""
    if generation != HOPPER or dtype == torch.float32:
        return None
    return ProductTile(128, 64, 64, 4 if rows * width < 128**3 else 8, 3)


PREFETCH = True
"""Whether weights are fetched into L2 while a kernel waits for the one before it."""

# One H200, ``benchmarks/latency.py --sweep`` at 16 to 128 rows of bert-base's widths. What counts
# is that a program asks for all that it reads before it waits for any of it. 64 rows are what
# Hopper's matrix unit takes at once: from some 17 rows on tiles of so many are the quickest.
FEW_ROWS_HOPPER = {
    "linear": (
        (8, FewRowsTile(16, 16, 128, 1, 4, 6)),
        (16, FewRowsTile(16, 64, 128, 1, 4, 4)),
        (64, FewRowsTile(64, 64, 128, 1, 4, 4)),
        (FEW_ROWS, FewRowsTile(64, 64, 128, 1, 8, 4)),
    ),
    "activation": (
        (8, FewRowsTile(16, 32, 128, 1, 4, 6)),
        (16, FewRowsTile(16, 64, 128, 1, 4, 4)),
        (64, FewRowsTile(64, 32, 128, 1, 4, 6)),
        (FEW_ROWS, FewRowsTile(64, 64, 128, 1, 8, 4)),
    ),
}
# Sums that are parted: up to how many rows, the numbers of a part, and the tile but for its parts.
SHORT_SUMS_HOPPER = (
    (8, 256, FewRowsTile(16, 32, 256, 1, 4, 2)),
    (16, 256, FewRowsTile(16, 64, 256, 1, 4, 2)),
    (FEW_ROWS, 256, FewRowsTile(64, 32, 128, 1, 4, 3)),
)
LONG_SUMS_HOPPER = (
    (8, 384, FewRowsTile(16, 64, 128, 1, 4, 4)),
    (16, 512, FewRowsTile(64, 64, 256, 1, 4, 3)),
    (64, 768, FewRowsTile(64, 32, 128, 1, 4, 6)),
    (FEW_ROWS, 768, FewRowsTile(64, 32, 128, 1, 4, 4)),
)


def few_rows(
    use: str, dtype: torch.dtype, rows: int, width: int, hidden: int, generation: int
) -> FewRowsTile | None:
    """The tile of (rows, hidden) times (hidden, width); None where the library's is used.

    use  linear, activation, or norm: its sum may be parted
    """
    if generation != HOPPER or dtype == torch.float32 or rows > FEW_ROWS:
        return None
    if use != "norm":
        return next(tile for most, tile in FEW_ROWS_HOPPER[use] if rows <= most)
    sums = SHORT_SUMS_HOPPER if hidden <= 1024 else LONG_SUMS_HOPPER
    part, tile = next((part, tile) for most, part, tile in sums if rows <= most)
    return replace(tile, parts=math.ceil(hidden / part))


ADD_RESIDUAL_NORM_WARPS = 8

# One H200; all of these move memory, and other GPUs differ little in how they like that done.
CLS_ATTENTION = Tile(1, 16, 1, 3)
BIAS_ACTIVATION = Tile(1, 1024, 4)
ROTATE = Tile(1, 1024, 4)
POSITION_SCORES = Tile(64, 64, 4)
POSITION_SCORES_FLOAT32 = Tile(32, 32, 4)
MEAN_POOL = Tile(32, 64, 1, 3)
EXPAND = Tile(1, 256, 4)
GATHER = Tile(4, 1024, 4)
HEAD = Tile(8, 256, 4)
HEAD_MOST_ROWS = 8
"""Sequences up to which a head's layers are products of a matrix and a vector."""
HEAD_MOST_COLUMNS = 16
"""Columns up to which they are that for any number of sequences: the labels."""
# One H200, 414 sequences of bert-base: 18.5 us; the library's float32 product 33 us.
HEAD_PRODUCT = ProductTile(16, 64, 64, 4, 3)
HEAD_PRODUCT_MANY = ProductTile(64, 64, 64, 4, 3)


@cache
def normalised_rows(columns: int) -> Tile:
    """Rows a program normalises; ``columns`` is the hidden size padded to a power of two.

    One row, and a warp for each 1,024 columns: the sums of most models stay within a warp.
    """
    return Tile(1, columns, min(16, max(1, columns // 1024)))


@cache
def generation(device: torch.device) -> int:
    """Major compute capability; 8 where there is no GPU (interpreted kernels)."""
    if device.type != "cuda":
        return 8
    return torch.cuda.get_device_capability(device)[0]


@cache
def overlaps(device: torch.device) -> bool:
    """Whether a kernel may start before its predecessor has ended; see ``overlap``."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
