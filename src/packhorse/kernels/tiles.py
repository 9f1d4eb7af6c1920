"""Tile sizes of the kernels, pinned. Nothing is tuned while serving.

A tile chosen by timing candidates at start-up makes the first minute slow and
the numbers of two servers differ in their last bits. These come from
``benchmarks/kernels.py --sweep`` on the GPU that is named beside each table;
other GPUs get the tiles that are safe everywhere (small enough for 100 KB of
shared memory), until somebody sweeps them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program takes: ``rows`` x ``columns`` elements (or queries x keys)."""

    rows: int
    columns: int
    num_warps: int
    num_stages: int = 1


HOPPER = 9

# Safe on every GPU from compute capability 8.0; by padded head size. Half types.
ATTENTION = {16: Tile(64, 64, 4, 2), 32: Tile(64, 64, 4, 2), 64: Tile(64, 32, 4, 2)}
ATTENTION_WIDE = Tile(64, 32, 4, 2)
# float32 multiplies on the CUDA cores: small tiles, or the registers spill.
ATTENTION_FLOAT32 = Tile(32, 32, 4, 1)
# One H200.
ATTENTION_HOPPER = {16: Tile(64, 64, 4, 2), 32: Tile(64, 64, 4, 2), 64: Tile(64, 64, 4, 2)}


@cache
def attention(dtype: torch.dtype, block_head: int, generation: int) -> Tile:
    """Queries x keys of ``packed_attention`` for a head size padded to ``block_head``."""
    if dtype == torch.float32:
        return ATTENTION_FLOAT32
    table = ATTENTION_HOPPER if generation == HOPPER else ATTENTION
    return table.get(block_head, ATTENTION_WIDE)


CLS_ATTENTION = Tile(1, 32, 1, 2)
BIAS_ACTIVATION = Tile(4, 1024, 4)
MEAN_POOL = Tile(32, 128, 4)
EXPAND = Tile(1, 256, 4)
GATHER = Tile(4, 1024, 4)


@cache
def normalised_rows(columns: int) -> Tile:
    """Rows a program normalises; ``columns`` is the hidden size padded to a power of two.

    One warp a row keeps the sums inside a warp, up to the width where a row no
    longer fits the registers of one.
    """
    if columns <= 1024:
        return Tile(4, columns, 4)
    return Tile(1, columns, min(16, columns // 512))


@cache
def generation(device: torch.device) -> int:
    """Major compute capability; 8 where there is no GPU (interpreted kernels)."""
    if device.type != "cuda":
        return 8
    return torch.cuda.get_device_capability(device)[0]
