"""Weights in oneDNN's blocks: the same results as plain products."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from packhorse.kernels.reference import ACTIVATIONS
from packhorse.models import cpu_products

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("rows", [1, 7, 300])
@pytest.mark.parametrize(("width", "hidden"), [(24, 8), (37, 61), (384, 128)])
def test_products_of_weights_in_blocks(
    dtype: torch.dtype, rows: int, width: int, hidden: int
) -> None:
    if not cpu_products.can_prepack(dtype):
        pytest.skip("this build of PyTorch has no oneDNN operators for weights in blocks")
    x, other = torch.randn(rows, hidden).to(dtype), torch.randn(rows, width).to(dtype)
    weight = (torch.randn(width, hidden) / hidden**0.5).to(dtype)
    bias = torch.randn(width).to(dtype)
    packed = cpu_products.prepacked(weight)
    assert packed.shape == weight.shape
    product = F.linear(x.double(), weight.double(), bias.double())
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype] * 4}
    for stored in (packed, weight):
        got = cpu_products.linear(x, stored, bias)
        torch.testing.assert_close(got.double(), product, **close)
        got = cpu_products.linear(x, stored, None)
        torch.testing.assert_close(got.double(), product - bias.double(), **close)
        got = cpu_products.linear_add(x, stored, bias, other)
        torch.testing.assert_close(got.double(), product + other.double(), **close)
        for activation in ("gelu", "gelu_new", "relu", "silu", "tanh"):
            got = cpu_products.linear_activation(x, stored, bias, activation)
            wanted = ACTIVATIONS[activation](product)
            torch.testing.assert_close(got.double(), wanted, **close)


def test_other_types_are_not_put_in_blocks() -> None:
    assert not cpu_products.can_prepack(torch.float16)
