"""``Backend`` for the CPU: oneDNN and PyTorch's fused CPU kernels, no cross-sequence work.

Sequences of equal length that lie side by side are one dense (count, length)
block, so attention runs over views of the packed row: nothing is padded and
no sequence sees another's keys.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from packhorse.kernels import reference
from packhorse.kernels.reference import ACTIVATIONS, pool_from, pooled_block
from packhorse.models import cpu_products
from packhorse.models.backend import (
    PLAIN,
    Dense,
    EmbeddingTables,
    Layout,
    Norm,
    Relation,
    Rotation,
)
from packhorse.models.pair_scores import scores_of_first, scores_of_pairs


class CpuBackend:
    """float32 or bfloat16 on x86-64 or arm64.

    prepack  have weights laid out as oneDNN reads them, where it has operators for that
    """

    def __init__(self, *, prepack: bool = True) -> None:
        self._prepack = prepack

    def pack(self, weight: Tensor, bias: Tensor | None) -> Dense:
        if self._prepack and cpu_products.can_prepack(weight.dtype):
            return Dense(cpu_products.prepacked(weight), bias)
        return Dense(weight.contiguous(), bias)

    def linear(self, x: Tensor, layer: Dense) -> Tensor:
        """x W^T + b: what all dense layers below are made of, with the next two."""
        return cpu_products.linear(x, layer.weight, layer.bias)

    def linear_activation(self, x: Tensor, layer: Dense, activation: str) -> Tensor:
        """activation(x W^T + b)."""
        return cpu_products.linear_activation(x, layer.weight, layer.bias, activation)

    def linear_add(self, x: Tensor, layer: Dense, other: Tensor) -> Tensor:
        """x W^T + b + other."""
        return cpu_products.linear_add(x, layer.weight, layer.bias, other)

    def embed(
        self,
        tables: EmbeddingTables,
        input_ids: Tensor,
        layout: Layout,
        out: Tensor | None = None,
    ) -> Tensor:
        summed = F.embedding(input_ids, tables.word)
        if tables.token_type is not None:
            if layout.token_type_ids is None:
                summed = summed + tables.token_type[0]
            else:
                summed = summed + F.embedding(layout.token_type_ids, tables.token_type)
        if tables.position is not None:
            summed = summed + F.embedding(layout.position_ids, tables.position)
        return placed(normalised(summed, tables.norm), out)

    def dense(self, x: Tensor, layer: Dense, out: Tensor | None = None) -> Tensor:
        return placed(self.linear(x, layer), out)

    def dense_residual_norm(
        self,
        x: Tensor,
        layer: Dense,
        residual: Tensor,
        norm: Norm,
        out: Tensor | None = None,
    ) -> Tensor:
        summed = self.linear_add(x, layer, residual)
        return placed(normalised(summed, norm), out)

    def feed_forward(
        self,
        x: Tensor,
        mlp_in: Dense,
        activation: str,
        mlp_out: Dense,
        norm: Norm,
        inner: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        wide = self.linear_activation(x, mlp_in, activation)
        return self.dense_residual_norm(wide, mlp_out, x, norm, out=out)

    def dense_add_norm(
        self,
        x: Tensor,
        layer: Dense,
        residual: Tensor,
        norm: Norm,
        out: Tensor | None = None,
    ) -> Tensor:
        summed = residual.add_(self.linear(x, layer))
        return placed(normalised(summed, norm), out)

    def dense_gated(
        self, x: Tensor, layer: Dense, activation: str, out: Tensor | None = None
    ) -> Tensor:
        inner, gate = self.linear(x, layer).chunk(2, -1)
        return placed(ACTIVATIONS[activation](inner).mul_(gate), out)

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        return normalised(x, norm)

    def rotate(self, x: Tensor, layout: Layout, rotation: Rotation, num_heads: int) -> None:
        reference.rotate(x, layout.position_ids, rotation.cos, rotation.sin, num_heads)

    def attention(
        self,
        qkv: Tensor,
        layout: Layout,
        num_heads: int,
        relation: Relation = PLAIN,
        out: Tensor | None = None,
        scratch: Tensor | None = None,
    ) -> Tensor:
        width = qkv.shape[1] // 3
        head = width // num_heads
        attended = qkv.new_empty(qkv.shape[0], width) if out is None else out
        for start, count, length in layout.runs:
            block = slice(start, start + count * length)
            q, k, v = qkv[block].view(count, length, 3, num_heads, head).permute(2, 0, 3, 1, 4)
            own = attended[block].view(count, length, num_heads, head)
            added = scores_of_pairs(relation, q, k)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=added, scale=relation.scale)
            own.copy_(y.transpose(1, 2))
        return attended

    def cls_attention(
        self,
        query: Tensor,
        kv: Tensor,
        layout: Layout,
        num_heads: int,
        relation: Relation = PLAIN,
    ) -> Tensor:
        width = query.shape[1]
        head = width // num_heads
        attended = torch.empty_like(query)
        row = 0
        for start, count, length in layout.runs:
            block = slice(start, start + count * length)
            k, v = kv[block].view(count, length, 2, num_heads, head).permute(2, 0, 3, 1, 4)
            q = query[row : row + count].view(count, num_heads, 1, head)
            own = attended[row : row + count].view(count, num_heads, 1, head)
            added = scores_of_first(relation, q, k)
            own.copy_(
                F.scaled_dot_product_attention(q, k, v, attn_mask=added, scale=relation.scale)
            )
            row += count
        return attended

    def head_layer(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        activation: str | None,
        out: Tensor | None = None,
    ) -> Tensor:
        y = F.linear(x.float(), weight, bias)
        return placed(y if activation is None else ACTIVATIONS[activation](y), out)

    def pool(self, hidden_states: Tensor, layout: Layout, mode: str) -> Tensor:
        if layout.marks is not None:
            return pool_from(hidden_states, layout.cu_seqlens, layout.marks, mode)
        width = hidden_states.shape[1]
        pooled = hidden_states.new_empty(len(layout.cu_seqlens) - 1, width, dtype=torch.float32)
        row = 0
        for start, count, length in layout.runs:
            block = hidden_states[start : start + count * length].view(count, length, width)
            pooled[row : row + count] = pooled_block(block, mode)
            row += count
        return pooled

    def first_tokens(self, hidden_states: Tensor, layout: Layout) -> Tensor:
        return hidden_states[layout.cu_seqlens[:-1].long()]


def normalised(x: Tensor, norm: Norm) -> Tensor:
    """PyTorch's CPU kernel accumulates half types in float32."""
    return F.layer_norm(x, (x.shape[-1],), norm.gamma, norm.beta, norm.eps)


def placed(result: Tensor, out: Tensor | None) -> Tensor:
    """The result, or ``out`` with it."""
    return result if out is None else out.copy_(result)
