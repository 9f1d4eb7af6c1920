from __future__ import annotations

import math

import pytest
import torch

from packhorse.kernels import mlp, reference, tiles

DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def gelu_tanh(x):
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def gelu(x):
    return 0.5 * x * math.erfc(-x / math.sqrt(2))


ORACLES = {
    "gelu": gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),
    "relu": lambda x: max(x, 0.0),
    "silu": lambda x: x * sigmoid(x),
    "swish": lambda x: x * sigmoid(x),
    "tanh": math.tanh,
}


def oracle(h, activation):
    function = ORACLES[activation]
    return torch.tensor([function(v) for v in h.flatten().tolist()]).double().view(h.shape)


def off(got, wanted):
    """The largest error, in units of the type's rounding of the result."""
    step = torch.finfo(got.dtype).eps / 2
    scale = wanted.abs() * step + 4e-7
    return ((got.cpu().double() - wanted).abs() / scale).max()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", reference.ACTIVATIONS)
def test_bias_activation(activation, dtype, device):
    x = (3 * torch.randn(5, 72)).to(device, dtype)
    bias = torch.randn(72).to(device, dtype)
    wanted = oracle(x.cpu().double() + bias.cpu().double(), activation)
    limit = 2.5 if dtype != torch.float32 else 6
    for module in (mlp, reference):
        got = module.bias_activation(x, bias, activation)
        assert got.dtype == dtype
        assert off(got, wanted) < limit
        assert off(module.bias_activation(x, None, activation), wanted) > limit


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gelu_of_every_half_number(dtype, device):
    """All finite 16-bit inputs: the correctly rounded result, or in rare cases its neighbour."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    every = every[every.isfinite()]
    padded = torch.zeros(64, 1024, dtype=dtype)
    padded.view(-1)[: len(every)] = every
    got = mlp.bias_activation(padded.to(device), None, "gelu").cpu().view(-1)[: len(every)]
    wanted = oracle(every.double(), "gelu")
    rounded = wanted.to(dtype)
    apart = (got.double() - rounded.double()).abs()
    # Beyond |x| = 6 the result is 0 or x to 1e-8.
    assert bool(((apart <= torch.finfo(dtype).eps * wanted.abs()) | (apart < 2e-7)).all())
    assert (apart > 1e-9).double().mean() < 0.005


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tanh_in_place_of_erf_would_be_noticed(dtype, device):
    x = torch.linspace(-4, 4, 512).view(2, 256).to(device, dtype)
    wanted = oracle(x.cpu().double(), "gelu")
    assert off(mlp.bias_activation(x, None, "gelu"), wanted) < 6
    assert off(mlp.bias_activation(x, None, "gelu_new"), wanted) > 20 * (dtype != torch.bfloat16)


@pytest.mark.parametrize(("rows", "width"), [(1, 16), (9, 1248), (2, 3072), (2, 4096), (3, 1500)])
def test_shapes_in_place(rows, width, device):
    x, bias = torch.randn(rows, width).to(device), torch.randn(width).to(device)
    wanted = reference.bias_activation(x, bias, "gelu")
    assert mlp.bias_activation(x, bias, "gelu", out=x) is x
    torch.testing.assert_close(x, wanted, rtol=1e-6, atol=3e-6)


@pytest.mark.parametrize("activation", reference.ACTIVATIONS)
@pytest.mark.parametrize("module", [mlp, reference])
def test_what_is_not_a_number_stays_so(module, activation, device):
    x = torch.tensor([[1.0, torch.nan, 2.0]]).to(device).half()
    got = module.bias_activation(x, None, activation)
    assert got.isnan().tolist() == [[False, True, False]]


@pytest.mark.parametrize("module", [mlp, reference])
def test_an_unknown_activation_is_refused(module, device):
    with pytest.raises(KeyError, match="gelu_typo"):
        module.bias_activation(torch.zeros(1, 1, device=device), None, "gelu_typo")


def test_both_sides_know_the_same_activations():
    assert set(mlp.KINDS) == set(reference.ACTIVATIONS)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("generation", "rows", "hidden", "width"),
    [(8, 9, 48, 136), (tiles.HOPPER, 1, 16, 8), (tiles.HOPPER, 20, 312, 328),
     (tiles.HOPPER, 70, 48, 136)],
)  # fmt: skip
def test_linear_activation(generation, rows, hidden, width, dtype, device, monkeypatch):
    """Fused, and where the library's product is followed by a pass: edges of tiles in all three."""
    if device.type == "cpu":
        monkeypatch.setattr(tiles, "generation", lambda device: generation)
    x, weight = torch.randn(rows, hidden), torch.randn(width, hidden) / hidden**0.5
    bias = torch.randn(width)
    x, weight, bias = (t.to(device, dtype) for t in (x, weight, bias))
    wanted = oracle((x.double() @ weight.double().t() + bias.double()).cpu(), "gelu")
    for module in (mlp, reference):
        out = torch.full((rows, width), torch.nan, dtype=dtype, device=device)
        assert module.linear_activation(x, weight, bias, "gelu", out=out) is out
        # The library rounds the product, whose terms are near 3, before the bias.
        apart = (out.cpu().double() - wanted).abs()
        assert apart.max() < 4 * torch.finfo(dtype).eps
        fresh = module.linear_activation(x, weight, bias, "gelu")
        assert torch.equal(fresh, out)


@pytest.mark.parametrize(("rows", "hidden", "width"), [(1, 64, 8), (300, 48, 72), (150, 80, 392)])
def test_programs_that_take_tile_after_tile(rows, hidden, width, device, monkeypatch):
    """More tiles than programs, and edges of tiles both ways."""
    tile = tiles.ProductTile(64, 64, 32, 4, 3, group=2, resident=True)
    monkeypatch.setattr(tiles, "few_rows", lambda *_: None)
    monkeypatch.setattr(tiles, "linear_activation", lambda *_: tile)
    monkeypatch.setattr(tiles, "multiprocessors", lambda _: 3)
    x, weight, bias = torch.randn(rows, hidden), torch.randn(width, hidden), torch.randn(width)
    x, weight, bias = (t.to(device).half() for t in (x, weight / hidden**0.5, bias))
    out = torch.full((rows + 2, width), torch.nan, dtype=x.dtype, device=device)
    mlp.linear_activation(x, weight, bias, "gelu", out=out[1:-1])
    wanted = reference.linear_activation(x, weight, bias, "gelu")
    torch.testing.assert_close(out[1:-1], wanted, rtol=2e-3, atol=4e-3)
    assert out[[0, -1]].isnan().all()  # nothing is written beside the rows


def test_linear_activation_of_rows_the_copy_engine_cannot_read(device, monkeypatch):
    monkeypatch.setattr(tiles, "generation", lambda device: tiles.HOPPER)
    x, weight, bias = torch.randn(5, 20), torch.randn(12, 20), torch.randn(12)
    x, weight, bias = (t.to(device).half() for t in (x, weight, bias))
    got = mlp.linear_activation(x, weight, bias, "relu")
    wanted = reference.linear_activation(x, weight, bias, "relu")
    torch.testing.assert_close(got, wanted, rtol=2e-3, atol=1e-2)
