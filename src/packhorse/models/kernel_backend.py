"""``Backend`` of the kernels: cuBLAS for most matrix products, fused passes between them."""

from __future__ import annotations

import torch
from torch import Tensor

from packhorse.kernels import Ops, tiles
from packhorse.kernels.reference import pool_from
from packhorse.models.backend import (
    PLAIN,
    Dense,
    EmbeddingTables,
    Layout,
    Norm,
    Relation,
    Rotation,
)


class KernelBackend:
    """Any device; ``kernels`` are Triton's or their twins."""

    def __init__(self, kernels: Ops) -> None:
        self._kernels = kernels

    def pack(self, weight: Tensor, bias: Tensor | None) -> Dense:
        return Dense(weight.contiguous(), bias)

    def embed(
        self,
        tables: EmbeddingTables,
        input_ids: Tensor,
        layout: Layout,
        out: Tensor | None = None,
    ) -> Tensor:
        return self._kernels.embedding_layer_norm(
            input_ids,
            layout.position_ids,
            layout.token_type_ids,
            tables.word,
            tables.position,
            tables.token_type,
            tables.norm.gamma,
            tables.norm.beta,
            tables.norm.eps,
            out=out,
        )

    def dense(self, x: Tensor, layer: Dense, out: Tensor | None = None) -> Tensor:
        return self._kernels.linear(x, layer.weight, layer.bias, out=out)

    def dense_activation(
        self, x: Tensor, layer: Dense, activation: str, out: Tensor | None = None
    ) -> Tensor:
        assert layer.bias is not None
        return self._kernels.linear_activation(x, layer.weight, layer.bias, activation, out=out)

    def dense_residual_norm(
        self,
        x: Tensor,
        layer: Dense,
        residual: Tensor,
        norm: Norm,
        out: Tensor | None = None,
    ) -> Tensor:
        return self._kernels.linear_residual_norm(
            x, layer.weight, layer.bias, residual, norm.gamma, norm.beta, norm.eps, out=out
        )

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
        """In pieces of rows whose inner activations stay in L2 from one product to the next."""
        rows, width = x.shape[0], mlp_in.weight.shape[0]
        step = tiles.feed_forward_rows(rows, width * x.element_size(), tiles.cache_bytes(x.device))
        if inner is None:
            inner = x.new_empty(min(step, rows) * width)
        if out is None:
            out = torch.empty_like(x)
        for start in range(0, rows, step):
            piece = x[start : start + step]
            wide = inner[: piece.shape[0] * width].view(-1, width)
            self.dense_activation(piece, mlp_in, activation, out=wide)
            self.dense_residual_norm(wide, mlp_out, piece, norm, out=out[start : start + step])
        return out

    def dense_add_norm(
        self,
        x: Tensor,
        layer: Dense,
        residual: Tensor,
        norm: Norm,
        out: Tensor | None = None,
    ) -> Tensor:
        product = self.dense(x, layer, out=out)
        return self._kernels.add_layer_norm(
            product, residual, norm.gamma, norm.beta, norm.eps, out=product
        )

    def dense_gated(
        self, x: Tensor, layer: Dense, activation: str, out: Tensor | None = None
    ) -> Tensor:
        return self._kernels.linear_gated(x, layer.weight, layer.bias, activation, out=out)

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        return self._kernels.layer_norm(x, norm.gamma, norm.beta, norm.eps)

    def rotate(self, x: Tensor, layout: Layout, rotation: Rotation, num_heads: int) -> None:
        self._kernels.rotate(x, layout.position_ids, rotation.cos, rotation.sin, num_heads)

    def attention(
        self,
        qkv: Tensor,
        layout: Layout,
        num_heads: int,
        relation: Relation = PLAIN,
        out: Tensor | None = None,
        scratch: Tensor | None = None,
    ) -> Tensor:
        bounds, positions = (layout.starts, layout.ends), None
        if relation.positions is not None:
            assert relation.scale is not None
            positions = self._kernels.position_scores(
                qkv, *bounds, num_heads, relation.positions, relation.scale, out=scratch
            )
        return self._kernels.packed_attention(
            qkv,
            *bounds,
            num_heads,
            score_bias=relation.score_bias,
            window=relation.window,
            positions=positions,
            scale=relation.scale,
            out=out,
        )

    def cls_attention(
        self,
        query: Tensor,
        kv: Tensor,
        layout: Layout,
        num_heads: int,
        relation: Relation = PLAIN,
    ) -> Tensor:
        return self._kernels.cls_attention(
            query,
            kv,
            layout.cu_seqlens,
            num_heads,
            score_bias=relation.score_bias,
            window=relation.window,
            vectors=relation.positions,
            scale=relation.scale,
        )

    def head_layer(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        activation: str | None,
        out: Tensor | None = None,
    ) -> Tensor:
        return self._kernels.head_layer(x, weight, bias, activation, out=out)

    def pool(self, hidden_states: Tensor, layout: Layout, mode: str) -> Tensor:
        if layout.marks is not None:  # rare enough for plain PyTorch
            return pool_from(hidden_states, layout.cu_seqlens, layout.marks, mode)
        if mode in ("cls", "marked"):
            return self.first_tokens(hidden_states, layout).float()
        return self._kernels.pool(hidden_states, layout.cu_seqlens, mode)

    def first_tokens(self, hidden_states: Tensor, layout: Layout) -> Tensor:
        return self._kernels.first_token_pool(hidden_states, layout.cu_seqlens)
