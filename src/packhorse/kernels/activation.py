"""The activations of encoder models, as functions of a float32 tile within a kernel."""

# ruff: noqa: N803 - what is fixed at compile time is in capitals, as in Triton's own code
from __future__ import annotations

import triton
import triton.language as tl

KINDS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
"""``hidden_act`` of a config to the formula that computes it."""

LOG2_E = tl.constexpr(1.4426950408889634)
SQRT_HALF = tl.constexpr(0.7071067811865476)
TWICE_SQRT_2_OVER_PI = tl.constexpr(1.5957691216057308)


@triton.jit
def _gelu(x, EXACT: tl.constexpr):
    """x Phi(x), Phi the normal distribution function; Hendrycks & Gimpel 2016, arXiv:1606.08415.

    float32 takes the library's erf. For half types x Phi(x) = max(x, 0) - |x| Q(|x|), where
    Q(z) = erfc(z / sqrt 2) / 2 and log2 Q is so smooth that a minimax polynomial of degree 7
    on [0, 6] gives Q to a relative 3.3e-6: a hundredth of a half type's rounding, in the
    negative tail too. Its leading coefficient is negative, so Q goes to 0 past the interval.
    """
    if EXACT:
        y = 0.5 * x * (1.0 + tl.erf(x * SQRT_HALF))
    else:
        z = tl.abs(x)
        p = -1.83480995e-06 * z + 6.15982644e-05
        p = p * z - 9.30524548e-04
        p = p * z + 8.50788970e-03
        p = p * z - 5.39600663e-02
        p = p * z - 4.58464384e-01
        p = p * z - 1.15125108e00
        p = p * z - 9.99995291e-01
        y = tl.maximum(x, 0.0) - z * tl.exp2(p)  # the second term keeps a NaN
    return y


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp2(x * -LOG2_E))


@triton.jit
def _tanh(x):
    """tanh(x); by its series where the exponential form would cancel."""
    square = x * x
    series = x + x * square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315)))
    return tl.where(square < 0.04, series, 2.0 * _sigmoid(2.0 * x) - 1.0)


@triton.jit
def activate(x, KIND: tl.constexpr, EXACT: tl.constexpr):
    """The activation of a float32 tile. Every kind keeps a NaN, so that it is found at the end."""
    if KIND == "gelu":
        y = _gelu(x, EXACT)
    elif KIND == "gelu_tanh":
        y = x * _sigmoid((x + 0.044715 * x * x * x) * TWICE_SQRT_2_OVER_PI)
    elif KIND == "quick_gelu":
        y = x * _sigmoid(1.702 * x)
    elif KIND == "silu":
        y = x * _sigmoid(x)
    elif KIND == "tanh":
        y = _tanh(x)
    else:
        tl.static_assert(KIND == "relu")
        y = tl.where(x < 0, 0.0, x)
    return y
