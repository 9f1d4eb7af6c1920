"""Every kernel in plain PyTorch: the oracle, the documentation, and the path without Triton.

Each function has a Triton kernel of the same name and signature elsewhere in
this package. T is the number of tokens in the packed row, N the number of
sequences, D the hidden size, H heads of size Dh = D / H. A packed row may be
longer than its sequences (a bucket): its tail tokens are sequences of length
one that attend to themselves and are read by nobody.

Half types are computed as the fused kernels do: loaded, widened to float32,
reduced there, and rounded once at the end. Dense layers are the library's
products, whose sums are float32 too, and whose results are rounded once more.

``out`` is where the result goes instead of new memory, for buffers that must
stay where they are; where a docstring says so it may be an input.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from packhorse.kernels.reference_attention import (
    PositionScores,
    PositionVectors,
    cls_attention,
    packed_attention,
    position_scores,
    score_tables,
)

__all__ = [
    "PositionScores",
    "PositionVectors",
    "cls_attention",
    "packed_attention",
    "position_scores",
    "score_tables",
]
"""The twins that have a file of their own; the others are below."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_fast": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": torch.tanh,
}
"""``hidden_act`` of a config to the function Transformers means by it.

gelu is exact, x * (1 + erf(x / sqrt 2)) / 2 (Hendrycks & Gimpel 2016, arXiv:1606.08415);
gelu_new, gelu_fast and gelu_pytorch_tanh are three spellings of its tanh approximation.
"""


def expand(
    cu_seqlens: Tensor,
    num_sequences: Tensor,
    num_tokens: int,
    out: tuple[Tensor, ...] | None = None,
    segment_starts: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Where each token of the packed row stands.

    cu_seqlens     int32 (N'+1,)  bounds; entries past ``num_sequences`` are ignored
    num_sequences  int32 (1,)     on the same device, so that a graph can be replayed
    num_tokens     T, the length of the row, tail included

    Returns positions, starts, ends, each int32 (T,): the index of a token in
    its sequence, and the bounds of that sequence in the row. A tail token t
    gets 0, t, t + 1. With ``segment_starts``, int32 (N',): where segment B starts within
    each sequence (its length if it has none), a fourth: the segment of each token, 0 or 1.
    """
    owner, own = _owners(cu_seqlens, num_sequences, num_tokens)
    tokens = torch.arange(num_tokens, device=cu_seqlens.device)
    starts = torch.where(own, cu_seqlens[owner], tokens)
    ends = torch.where(own, cu_seqlens[(owner + 1).clamp(max=len(cu_seqlens) - 1)], tokens + 1)
    fresh: tuple[Tensor, ...] = (tokens - starts).int(), starts.int(), ends.int()
    if segment_starts is not None:
        second = segment_starts[owner.clamp(max=len(segment_starts) - 1)]
        fresh = *fresh, (own & (tokens - cu_seqlens[owner] >= second)).int()
    if out is None:
        return fresh
    for target, value in zip(out, fresh, strict=True):
        target.copy_(value)
    return out


def _owners(cu_seqlens: Tensor, num_sequences: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
    """Each token's sequence, and whether it has one (a tail token has none)."""
    count = int(num_sequences)
    bounds = cu_seqlens[: count + 1].contiguous()
    tokens = torch.arange(num_tokens, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
    owner = torch.searchsorted(bounds, tokens, right=True) - 1
    return owner, owner < count


def _into(result: Tensor, out: Tensor | None) -> Tensor:
    return result if out is None else out.copy_(result)


def embedding_layer_norm(
    input_ids: Tensor,
    position_ids: Tensor,
    token_type_ids: Tensor | None,
    word_table: Tensor,
    position_table: Tensor | None,
    type_table: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    eps: float,
    out: Tensor | None = None,
) -> Tensor:
    """LayerNorm(word[id] + position[p] + type[s]), (T, D) in the tables' dtype.

    ids are int32 (T,). ``token_type_ids`` None means segment 0 everywhere.
    """
    summed = word_table[input_ids.long()].float()
    if type_table is not None:
        if token_type_ids is None:
            summed = summed + type_table[0].float()
        else:
            summed = summed + type_table[token_type_ids.long()].float()
    if position_table is not None:
        summed = summed + position_table[position_ids.long()].float()
    return _into(layer_norm(summed, gamma, beta, eps).to(word_table.dtype), out)


def layer_norm(
    x: Tensor, gamma: Tensor, beta: Tensor, eps: float, out: Tensor | None = None
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * gamma + beta over the last axis, float32 inside.

    Ba, Kiros & Hinton 2016, arXiv:1607.06450; the variance is the biased one. ``out`` may be x.
    """
    normal = F.layer_norm(x.float(), (x.shape[-1],), gamma.float(), beta.float(), eps)
    return _into(normal.to(x.dtype), out)


def residual_layer_norm(
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor,
    gamma: Tensor,
    beta: Tensor,
    eps: float,
    out: Tensor | None = None,
) -> Tensor:
    """LayerNorm(x + bias + residual), all (rows, D); ``bias`` (D,) or None if x has it already.

    ``out`` may be x or residual.
    """
    summed = x.float() + residual.float()
    if bias is not None:
        summed = summed + bias.float()
    return _into(layer_norm(summed, gamma, beta, eps).to(x.dtype), out)


def add_layer_norm(
    x: Tensor,
    residual: Tensor,
    gamma: Tensor,
    beta: Tensor,
    eps: float,
    out: Tensor | None = None,
) -> Tensor:
    """residual += x, in place; then LayerNorm(residual): all (rows, D); ``out`` may be x.

    The sum is normalised as it was before it is rounded to residual's type.
    """
    summed = residual.float() + x.float()
    residual.copy_(summed)
    return _into(layer_norm(summed, gamma, beta, eps).to(x.dtype), out)


def bias_activation(
    x: Tensor, bias: Tensor | None, activation: str, out: Tensor | None = None
) -> Tensor:
    """activation(x + bias) for x (rows, F) and bias (F,), float32 inside; ``out`` may be x."""
    function = ACTIVATIONS[activation]
    widened = x.float() if bias is None else x.float() + bias.float()
    return _into(function(widened).to(x.dtype), out)


def linear_activation(
    x: Tensor, weight: Tensor, bias: Tensor, activation: str, out: Tensor | None = None
) -> Tensor:
    """activation(x weight^T + bias): x (rows, D), weight (F, D), bias (F,) to (rows, F)."""
    function = ACTIVATIONS[activation]
    return _into(function(F.linear(x, weight, bias).float()).to(x.dtype), out)


def gate(x: Tensor, activation: str, out: Tensor | None = None) -> Tensor:
    """activation(a) * b for x (rows, 2 F) = [a b]: (rows, F), float32 inside."""
    a, b = x.float().chunk(2, -1)
    return _into((ACTIVATIONS[activation](a) * b).to(x.dtype), out)


def linear_gated(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, out: Tensor | None = None
) -> Tensor:
    """activation(a) * b for [a b] = x weight^T + bias: x (rows, D), weight (2 F, D) to (rows, F).

    Shazeer 2020, arXiv:2002.05202: GEGLU where the activation is GELU.
    """
    return gate(F.linear(x, weight, bias), activation, out=out)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
    """x weight^T + bias: x (rows, D), weight (F, D), bias (F,) or None to (rows, F)."""
    return _into(F.linear(x, weight, bias), out)


def linear_residual_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor,
    gamma: Tensor,
    beta: Tensor,
    eps: float,
    out: Tensor | None = None,
) -> Tensor:
    """LayerNorm(x weight^T + bias + residual): x (rows, F), weight (D, F), the rest of width D.

    ``out`` may be residual.
    """
    product = F.linear(x, weight)
    return residual_layer_norm(product, bias, residual, gamma, beta, eps, out=out)


def head_layer(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    activation: str | None,
    out: Tensor | None = None,
) -> Tensor:
    """activation(x weight^T + bias) in float32, or without activation: float32 (N, F).

    x (N, D) in any type, weight (F, D) and bias (F,) float32.
    """
    y = F.linear(x.float(), weight, bias)
    return _into(y if activation is None else ACTIVATIONS[activation](y), out)


def rotate(x: Tensor, position_ids: Tensor, cos: Tensor, sin: Tensor, num_heads: int) -> Tensor:
    """Turn the first ``num_heads`` heads of each row of x (T, …) in place; returns x.

    position_ids  int32 (T,)
    cos, sin      float32 (L, Dh/2): of position times angle; a head is turned in pairs d, d + Dh/2

    Su et al. 2021, arXiv:2104.09864, in the order of halves that Transformers has.
    """
    half = cos.shape[1]
    turned = x[:, : num_heads * 2 * half]
    a, b = turned.float().view(len(x), num_heads, 2, half).unbind(2)
    c, s = (table[position_ids.long()][:, None] for table in (cos, sin))
    y = torch.stack([a * c - b * s, b * c + a * s], dim=2)
    turned.copy_(y.reshape(len(x), -1))
    return x


def first_token_pool(
    hidden_states: Tensor, cu_seqlens: Tensor, out: Tensor | None = None
) -> Tensor:
    """The hidden state of each sequence's first token: (T, D) to (N, D); zeros for an empty one."""
    filled = cu_seqlens.diff() > 0
    first = torch.where(filled, cu_seqlens[:-1], 0)
    zero = hidden_states.new_zeros(())
    return _into(torch.where(filled[:, None], hidden_states[first], zero), out)


def pool(hidden_states: Tensor, cu_seqlens: Tensor, mode: str, out: Tensor | None = None) -> Tensor:
    """Each sequence's hidden states as one row: (T, D) to float32 (N, D).

    mode: mean, max, mean_sqrt_len, weighted_mean or last, as ``pooled_block`` computes them.
    An empty sequence gives zeros.
    """
    shape = cu_seqlens.numel() - 1, hidden_states.shape[1]
    rows = hidden_states.new_zeros(shape, dtype=torch.float32)
    for row, (start, end) in enumerate(pairwise(cu_seqlens.tolist())):
        if end > start:
            rows[row] = pooled_block(hidden_states[start:end].unsqueeze(0), mode)[0]
    return _into(rows, out)


def pool_from(hidden_states: Tensor, cu_seqlens: Tensor, marks: Tensor, mode: str) -> Tensor:
    """As ``pool``, of each sequence from its token ``marks[i]`` on: (T, D) to float32 (N, D).

    marks: int32 (N,), each less than its sequence's length. Weights of the weighted mean are those
    of whole sequences, as in sentence-transformers, which masks what it leaves out. With m the
    mark, which is the number of tokens before it:

        marked         h_(m+1)
        weighted_mean  sum over i > m of i h_i / (m+1 + … + n)
    """
    first, lengths = cu_seqlens[:-1].long(), cu_seqlens.diff().long()
    if mode == "marked":
        return hidden_states[first + marks].float()
    if mode == "last":
        return hidden_states[first + lengths - 1].float()
    count = len(lengths)
    owner = torch.repeat_interleave(torch.arange(count, device=marks.device), lengths)
    place = torch.arange(len(owner), device=marks.device) - first[owner]
    is_read = place >= marks[owner]
    x, owner = hidden_states[: len(place)][is_read].float(), owner[is_read]
    if mode == "max":
        rows = x.new_full((count, x.shape[1]), float("-inf"))
        return rows.scatter_reduce(0, owner[:, None].expand_as(x), x, "amax")
    weights = x.new_ones(len(x))
    if mode == "weighted_mean":
        weights = (place[is_read] + 1).float()
    total = x.new_zeros(count, x.shape[1]).index_add(0, owner, x * weights[:, None])
    divisor = x.new_zeros(count).index_add(0, owner, weights)
    return total / (divisor.sqrt() if mode == "mean_sqrt_len" else divisor)[:, None]


def pooled_block(block: Tensor, mode: str) -> Tensor:
    """Sequences of one length, (count, length, D), each as one row: float32 (count, D).

    With h_1 … h_n the hidden states, by element where that makes a difference:

        cls, marked    h_1; of what is marked see ``pool_from``
        last           h_n
        max            max h_i
        mean           sum h_i / n
        mean_sqrt_len  sum h_i / sqrt n
        weighted_mean  sum i h_i / (1 + 2 + … + n)

    as in sentence-transformers' Pooling (Reimers & Gurevych 2019, arXiv:1908.10084;
    the weighted mean is from Muennighoff 2022, arXiv:2202.08904).
    """
    length = block.shape[1]
    if mode in ("cls", "marked", "last"):
        return block[:, length - 1 if mode == "last" else 0].float()
    if mode == "max":
        return block.amax(dim=1).float()
    if mode == "weighted_mean":
        weights = torch.arange(1, length + 1, dtype=torch.float32, device=block.device)
        return (block.float() * weights[:, None]).sum(dim=1) / (length * (length + 1) / 2)
    total = block.sum(dim=1, dtype=torch.float32)
    return total / {"mean": length, "mean_sqrt_len": math.sqrt(length)}[mode]
