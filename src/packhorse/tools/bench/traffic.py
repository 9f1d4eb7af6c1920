"""How many bytes a set of texts must move through memory, as a floor.

Every weight is read once a batch, and every operation of the packed engine
reads its inputs and writes its output once; what stays in a cache costs less.
For one token and layer, in numbers of D (hidden) and F (intermediate):

    q, k, v        read  D, write 3 D
    attention      read 3 D, write  D
    output         read  D, write  D
    add, norm      read 2 D, write  D
    mlp in         read  D, write  F
    bias, GELU     read  F, write  F
    mlp out        read  F, write  D
    add, norm      read 2 D, write  D        in all 18 D + 4 F

and for one token before the layers: three table rows read, one written.
"""

from __future__ import annotations

from packhorse.tools.bench.flops import ModelSize

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Of one number, by type."""


def activation_bytes(size: ModelSize, tokens: int, dtype: str) -> int:
    """All layers and the embedding over ``tokens`` tokens."""
    a_layer = 18 * size.hidden + 4 * size.intermediate
    return BYTES[dtype] * tokens * (size.layers * a_layer + 4 * size.hidden)


def weight_bytes(size: ModelSize, batches: int, dtype: str) -> int:
    """The weights of every matrix product, once for each batch."""
    return BYTES[dtype] * batches * size.parameters_in_products


def least_bytes(size: ModelSize, tokens: int, batches: int, dtype: str) -> int:
    """Weights and activations."""
    return weight_bytes(size, batches, dtype) + activation_bytes(size, tokens, dtype)
