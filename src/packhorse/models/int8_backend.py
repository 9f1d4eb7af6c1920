"""``Backend`` for the CPU in which dense layers are 8 bits wide, where they have been made so."""

from __future__ import annotations

from torch import Tensor

from packhorse.models.backend import Dense, Norm
from packhorse.models.cpu_backend import CpuBackend, normalised, placed
from packhorse.models.int8 import Int8Dense, product, product_added, product_of_levels


class Int8Backend(CpuBackend):
    """All that is no dense layer is as in ``CpuBackend``, and so are layers that stayed wide."""

    def dense(self, x: Tensor, layer: Dense, out: Tensor | None = None) -> Tensor:
        if not isinstance(layer, Int8Dense):
            return super().dense(x, layer, out)
        return placed(product(x, layer), out)

    def dense_residual_norm(
        self,
        x: Tensor,
        layer: Dense,
        residual: Tensor,
        norm: Norm,
        out: Tensor | None = None,
    ) -> Tensor:
        if not isinstance(layer, Int8Dense):
            return super().dense_residual_norm(x, layer, residual, norm, out)
        summed = product_added(layer.levels.quantised(x), layer, residual)
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
        if not isinstance(mlp_in, Int8Dense) or not isinstance(mlp_out, Int8Dense):
            return super().feed_forward(x, mlp_in, activation, mlp_out, norm, inner, out)
        wide = product_of_levels(x, mlp_in, activation, mlp_out)
        return placed(normalised(product_added(wide, mlp_out, x), norm), out)

    def dense_add_norm(
        self,
        x: Tensor,
        layer: Dense,
        residual: Tensor,
        norm: Norm,
        out: Tensor | None = None,
    ) -> Tensor:
        if not isinstance(layer, Int8Dense):
            return super().dense_add_norm(x, layer, residual, norm, out)
        summed = residual.copy_(product_added(layer.levels.quantised(x), layer, residual))
        return placed(normalised(summed, norm), out)

    def gated_projection(self, x: Tensor, layer: Dense) -> Tensor:
        if not isinstance(layer, Int8Dense):
            return super().gated_projection(x, layer)
        return product(x, layer)
