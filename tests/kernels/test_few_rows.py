from __future__ import annotations

import math

import pytest
import torch

from packhorse.kernels import few_rows, head, mlp, reference, tiles

HALF = [torch.float16, torch.bfloat16]
SHAPES = [(1, 768, 72), (3, 20, 24), (16, 312, 104), (17, 136, 48), (48, 768, 40), (64, 48, 200)]
"""Rows, inner dimension, width."""
LONG = [(1, 3072, 40), (33, 3072, 24), (5, 1248, 72)]


@pytest.fixture(autouse=True)
def _as_on_hopper(device, monkeypatch):
    if device.type == "cpu":
        monkeypatch.setattr(tiles, "generation", lambda device: tiles.HOPPER)


def draw(device, dtype, *shapes):
    return [torch.randn(shape).to(device, dtype) for shape in shapes]


def operands(rows, hidden, width, dtype, device):
    x, weight, bias = draw(device, dtype, (rows, hidden), (width, hidden), (width,))
    weight = weight / hidden**0.5
    product = x.cpu().double() @ weight.cpu().double().t() + bias.cpu().double()
    return x, weight, bias, product


def poisoned(rows, width, like):
    return torch.full((rows, width), torch.nan, dtype=like.dtype, device=like.device)


def apart(got, wanted):
    return (got.cpu().double() - wanted).abs().max()


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(("rows", "hidden", "width"), SHAPES + LONG)
def test_linear(rows, hidden, width, dtype, device):
    x, weight, bias, wanted = operands(rows, hidden, width, dtype, device)
    limit = 3 * torch.finfo(dtype).eps
    for module in (few_rows, reference):
        out = poisoned(rows, width, x)
        assert module.linear(x, weight, bias, out=out) is out
        assert apart(out, wanted) < limit
        assert torch.equal(module.linear(x, weight, bias), out)
        without = module.linear(x, weight, None)
        assert apart(without, wanted - bias.cpu().double()) < limit


@pytest.mark.parametrize("activation", ["gelu", "relu", "tanh"])
@pytest.mark.parametrize(("rows", "hidden", "width"), SHAPES[:4])
def test_linear_activation(rows, hidden, width, activation, device):
    x, weight, bias, wanted = operands(rows, hidden, width, torch.float16, device)
    functions = {
        "gelu": lambda h: 0.5 * h * torch.erfc(-h / math.sqrt(2)),
        "relu": lambda h: h.clamp(min=0),
        "tanh": torch.tanh,
    }
    out = poisoned(rows, width, x)
    assert mlp.linear_activation(x, weight, bias, activation, out=out) is out
    assert apart(out, functions[activation](wanted)) < 4 * torch.finfo(torch.float16).eps


def norm_oracle(h, gamma, beta, eps):
    """LayerNorm in float64, from its definition."""
    centred = h - h.mean(-1, keepdim=True)
    scale = (centred.square().mean(-1, keepdim=True) + eps).rsqrt()
    return centred * scale * gamma.cpu().double() + beta.cpu().double()


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(("rows", "hidden", "width"), SHAPES[:5] + LONG)
def test_linear_residual_norm(rows, hidden, width, dtype, device):
    x, weight, bias, product = operands(rows, hidden, width, dtype, device)
    residual, gamma, beta = draw(device, dtype, (rows, width), (width,), (width,))
    wanted = norm_oracle(product + residual.cpu().double(), gamma, beta, 1e-6)
    rest = residual, gamma, beta, 1e-6
    # The kernel rounds once, at the end; the twin rounds the product too.
    exact = 0.51 * torch.finfo(dtype).eps * wanted.abs() + 2e-5
    got = few_rows.linear_residual_norm(x, weight, bias, *rest)
    assert ((got.cpu().double() - wanted).abs() <= exact).all()
    assert apart(reference.linear_residual_norm(x, weight, bias, *rest), wanted) < (
        8 * torch.finfo(dtype).eps
    )
    again = residual.clone()
    assert few_rows.linear_residual_norm(x, weight, bias, again, *rest[1:], out=again) is again
    assert torch.equal(again, got)


@pytest.mark.parametrize("module", [few_rows, reference])
def test_a_bias_that_is_left_out_would_be_noticed(module, device):
    x, weight, bias, product = operands(17, 136, 48, torch.float16, device)
    residual, gamma, beta = draw(device, torch.float16, (17, 48), (48,), (48,))
    wanted = norm_oracle(product + residual.cpu().double(), gamma, beta, 1e-6)
    rest = residual, gamma, beta, 1e-6
    assert apart(module.linear_residual_norm(x, weight, bias, *rest), wanted) < 0.01
    assert apart(module.linear_residual_norm(x, weight, None, *rest), wanted) > 0.1
    again = residual.clone()
    module.linear_residual_norm(x, weight, bias, again, *rest[1:], out=again)
    assert torch.equal(again, module.linear_residual_norm(x, weight, bias, *rest))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_many_rows_and_float32_go_to_the_library(dtype, device):
    rows = 3 if dtype == torch.float32 else tiles.FEW_ROWS + 1
    x, weight, bias, product = operands(rows, 48, 40, dtype, device)
    residual, gamma, beta = draw(device, dtype, (rows, 40), (40,), (40,))
    assert tiles.few_rows("norm", dtype, rows, 40, 48, tiles.HOPPER) is None
    limit = 8 * torch.finfo(dtype).eps
    out = poisoned(rows, 40, x)
    assert few_rows.linear(x, weight, bias, out=out) is out
    assert apart(out, product) < limit
    assert apart(few_rows.linear(x, weight, bias), product) < limit
    assert few_rows.linear(x, weight, None, out=out) is out
    assert apart(out, product - bias.cpu().double()) < limit
    wanted = norm_oracle(product + residual.cpu().double(), gamma, beta, 1e-6)
    got = few_rows.linear_residual_norm(x, weight, bias, residual, gamma, beta, 1e-6)
    assert apart(got, wanted) < limit


def test_rows_of_a_wider_buffer(device):
    wide, weight, bias = draw(device, torch.float16, (5, 100), (40, 48), (40,))
    x = wide[:, :48]
    wanted = x.cpu().double() @ weight.cpu().double().t() + bias.cpu().double()
    target = poisoned(5, 60, wide)
    few_rows.linear(x, weight, bias, out=target[:, :40])
    assert apart(target[:, :40], wanted) < 0.02
    assert target[:, 40:].isnan().all()


def test_a_row_that_is_not_finite_stays_in_its_row(device):
    x, weight, bias, _ = operands(6, 64, 40, torch.float16, device)
    x[2, 5], x[4, 0] = torch.inf, torch.nan
    residual, vector = draw(device, torch.float16, (6, 40), (40,))
    for got in (
        few_rows.linear(x, weight, bias),
        few_rows.linear_residual_norm(x, weight, bias, residual, vector, vector, 1e-6),
    ):
        assert got.isfinite().all(1).tolist() == [True, True, False, True, False, True]


@pytest.mark.parametrize("dtype", [*HALF, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("count", "hidden", "width"), [(1, 768, 2), (3, 312, 20), (9, 48, 5), (17, 40, 72)]
)
def test_head_layer(count, hidden, width, dtype, device):
    (x,) = draw(device, dtype, (count, hidden))
    weight, bias = draw(device, torch.float32, (width, hidden), (width,))
    weight /= hidden**0.5
    wanted = x.cpu().double() @ weight.cpu().double().t() + bias.cpu().double()
    for module in (head, reference):
        for activation, result in ((None, wanted), ("tanh", wanted.tanh())):
            out = torch.full((count, width), torch.nan, device=device)
            assert module.head_layer(x, weight, bias, activation, out=out) is out
            assert apart(out, result) < 3e-6
            assert torch.equal(module.head_layer(x, weight, bias, activation), out)


@pytest.mark.parametrize("rows", range(1, tiles.FEW_ROWS + 10))
def test_every_number_of_rows_has_a_tile_that_covers_the_sum(rows):
    for use in ("linear", "activation", "norm"):
        for width, hidden in ((768, 768), (768, 3072), (2304, 768), (3072, 768), (24, 8)):
            tile = tiles.few_rows(use, torch.float16, rows, width, hidden, tiles.HOPPER)
            assert (tile is None) == (rows > tiles.FEW_ROWS)
            if tile is not None:
                assert tile.parts == 1 or use == "norm"
                assert 1 <= tile.parts <= math.ceil(hidden / tile.depth)


def test_tiles_change_at_the_steps_and_nowhere_else():
    tables = [*tiles.FEW_ROWS_HOPPER.values(), tiles.SHORT_SUMS_HOPPER, tiles.LONG_SUMS_HOPPER]
    assert {most for table in tables for most, *_ in table} == set(tiles.FEW_ROWS_STEPS)
    assert tiles.FEW_GATED_ROWS in tiles.FEW_ROWS_STEPS


class Launches:
    """Stands for a kernel: notes its grids, computes nothing."""

    def __init__(self):
        self.grids = []

    def __getitem__(self, grid):
        self.grids.append(grid)
        return lambda *args, **kwargs: None


def test_a_head_of_few_labels_takes_as_many_tokens_as_there_are(device, monkeypatch):
    """A grid has room for 65,535 programs in all dimensions but the first."""
    monkeypatch.setattr(head, "_head_layer", launches := Launches())
    x, weight, bias = draw(device, torch.float16, (70_000, 16), (9, 16), (9,))
    head.head_layer(x, weight.float(), bias.float(), None)
    assert launches.grids == [(2 * 70_000,)]
