"""8-bit dense layers on the CPU: unsigned activations, signed weights, sums in int32.

Activations have one scale and one zero point a layer, weights a scale for each
output. All are fixed before the first request, so what is answered for a text
does not depend on its neighbours in a batch, as scales measured while serving would.

Columns of an activation may be of very different size, as LayerNorm's are. So each
is divided by a factor that its column of the weight is multiplied by (Xiao et al.
2022, SmoothQuant, arXiv:2211.10438, equation 4 with alpha 0.5): the product is the same.

    x W^T  =  (x / f) (W f)^T  ~  s_x s_w (q_x - z) q_w^T
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from packhorse.kernels.reference import ACTIVATIONS
from packhorse.models.backend import Dense
from packhorse.models.cpu_products import FUSED, TYPICAL_ROWS

LEVELS = 255
"""Steps of an activation from its least to its largest value."""

MOST_WEIGHT = 127

MOST_WEIGHT_OF_16_BITS = 63
"""Without VNNI two products are added in 16 bits: 2 x 255 x 63 is the most that fits."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How far the values of an activation reach: least and largest of each column, float32 (D,)."""

    least: Tensor
    largest: Tensor

    def united(self, other: Extent) -> Extent:
        """What holds both."""
        return Extent(
            torch.minimum(self.least, other.least), torch.maximum(self.largest, other.largest)
        )


def extent_of(x: Tensor) -> Extent:
    """Of rows (T, D); zero is always in it, so that it has a level of its own."""
    least, largest = torch.aminmax(x.float(), dim=0)
    return Extent(least.clamp_max_(0.0), largest.clamp_min_(0.0))


@dataclass(frozen=True, slots=True)
class Levels:
    """How an activation (T, D) becomes bytes.

    columns     float32 (D,): what each column is multiplied by; None: all by 1 / scale
    scale       of one level, after division by the columns' factors
    zero_point  the level of 0
    """

    columns: Tensor | None
    scale: float
    zero_point: int

    def quantised(self, x: Tensor) -> Tensor:
        """uint8, of x in float32 or bfloat16; values beyond the extent become its ends."""
        if self.columns is None:
            return _rounded(x.float(), self.scale, self.zero_point)
        return _rounded(x * self.columns, 1.0, self.zero_point)


def _rounded(x: Tensor, scale: float, zero_point: int) -> Tensor:
    """uint8: x / scale + zero_point, rounded and held within 0 and 255, in one pass.

    The only operator that does it in one makes a tensor of a quantised type; its
    ``int_repr`` would copy it, so the memory is looked at as what it is.
    """
    made = torch.quantize_per_tensor(x, scale, zero_point, torch.quint8)
    return torch.empty(0, dtype=torch.uint8).set_(
        made.untyped_storage(), 0, made.shape, made.stride()
    )


@dataclass(frozen=True, slots=True)
class Int8Dense(Dense):
    """A dense layer whose ``weight`` is int8 in oneDNN's blocks: opaque, (in, out).

    weight_scales  float32 (out,)
    levels         of its input
    """

    weight_scales: Tensor
    weight_zeros: Tensor
    levels: Levels

    @property
    def in_features(self) -> int:
        return self.weight.shape[0]


def can_quantise() -> bool:
    """Whether this build of PyTorch has the products."""
    if not torch.backends.mkldnn.is_available() or not hasattr(
        torch.ops.onednn, "qlinear_pointwise"
    ):
        return False
    with warnings.catch_warnings():
        # PyTorch 2.13 says once a process that its quantised types will go; the ceiling of
        # our dependency keeps us on versions that have them.
        warnings.simplefilter("ignore")
        _rounded(torch.zeros(1), 1.0, 0)
    return True


def quantised(layer: Dense, extent: Extent, most_weight: int, *, even: bool) -> Int8Dense:
    """A float layer (out, in) in 8 bits, for inputs of this extent.

    ``even`` divides columns by factors; without it they keep their proportions, as an input
    must whose bytes are written by the product before (``product_of_levels``).
    """
    weight = layer.weight.float()
    reach = torch.maximum(-extent.least, extent.largest).clamp_min(1e-5)
    factors = (reach / weight.abs().amax(0).clamp_min(1e-5)).sqrt() if even else None
    least, largest = extent.least, extent.largest
    if factors is not None:
        least, largest, weight = least / factors, largest / factors, weight * factors
    low, high = float(least.min()), float(largest.max())
    scale = max(high - low, 1e-10) / LEVELS
    weight_scales = weight.abs().amax(1).clamp_min(1e-10) / most_weight
    whole = (weight / weight_scales[:, None]).round_().to(torch.int8)
    bias = None if layer.bias is None else layer.bias.float()
    return Int8Dense(
        weight=torch.ops.onednn.qlinear_prepack(whole, [TYPICAL_ROWS, whole.shape[1]]),
        bias=bias,
        weight_scales=weight_scales,
        weight_zeros=torch.zeros(len(whole), dtype=torch.int32),
        levels=Levels(
            columns=None if factors is None else 1 / (factors * scale),
            scale=scale,
            zero_point=round(-low / scale),
        ),
    )


def product(x: Tensor, layer: Int8Dense, activation: str | None = None) -> Tensor:
    """activation(x W^T + b): (rows, in) to (rows, out), of x's type."""
    fused = activation in FUSED
    y = _product(layer.levels.quantised(x), layer, x.dtype, activation if fused else None)
    return y if fused or activation is None else ACTIVATIONS[activation](y)


def product_of_levels(x: Tensor, layer: Int8Dense, activation: str, following: Int8Dense) -> Tensor:
    """The same as bytes, (rows, out), that ``following`` reads: nothing wider is written."""
    if activation in FUSED:
        return _product(layer.levels.quantised(x), layer, torch.uint8, activation, following.levels)
    return following.levels.quantised(product(x, layer, activation))


def product_added(levels: Tensor, layer: Int8Dense, other: Tensor) -> Tensor:
    """x W^T + b + other, of x as bytes (rows, in) and other (rows, out), of other's type."""
    own = layer.levels
    y: Tensor = torch.ops.onednn.qlinear_pointwise.binary(
        *(levels, own.scale, own.zero_point),
        *(layer.weight, layer.weight_scales, layer.weight_zeros),
        *(other, layer.bias, 1.0, 0, other.dtype, 1.0, 0, "add", 1.0, "none", [], ""),
    )
    return y


def _product(
    levels: Tensor,
    layer: Int8Dense,
    dtype: torch.dtype,
    activation: str | None,
    following: Levels | None = None,
) -> Tensor:
    own = layer.levels
    name, algorithm = ("none", "") if activation is None else FUSED[activation]
    scale, zero_point = (1.0, 0) if following is None else (following.scale, following.zero_point)
    y: Tensor = torch.ops.onednn.qlinear_pointwise(
        *(levels, own.scale, own.zero_point),
        *(layer.weight, layer.weight_scales, layer.weight_zeros, layer.bias),
        *(scale, zero_point, dtype, name, [], algorithm),
    )
    return y
