"""``Backend`` for the CPU in which dense layers are 8 bits wide, where they have been made so."""

from __future__ import annotations

from torch import Tensor

from packhorse.models.backend import Dense, Norm
from packhorse.models.cpu_backend import CpuBackend, normalised, placed
from packhorse.models.int8 import Int8Dense, product, product_added, product_of_levels


class Int8Backend(CpuBackend):
    """All that is no dense layer is as in ``CpuBackend``, and so are layers that stayed wide."""

    def linear(self, x: Tensor, layer: Dense) -> Tensor:
        if not isinstance(layer, Int8Dense):
            return super().linear(x, layer)
        return product(x, layer)

    def linear_activation(self, x: Tensor, layer: Dense, activation: str) -> Tensor:
        if not isinstance(layer, Int8Dense):
            return super().linear_activation(x, layer, activation)
        return product(x, layer, activation)

    def linear_add(self, x: Tensor, layer: Dense, other: Tensor) -> Tensor:
        if not isinstance(layer, Int8Dense):
            return super().linear_add(x, layer, other)
        return product_added(layer.levels.quantised(x), layer, other)

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
        """The first product writes the bytes that the second reads."""
        if not isinstance(mlp_in, Int8Dense) or not isinstance(mlp_out, Int8Dense):
            return super().feed_forward(x, mlp_in, activation, mlp_out, norm, inner, out)
        wide = product_of_levels(x, mlp_in, activation, mlp_out)
        return placed(normalised(product_added(wide, mlp_out, x), norm), out)
