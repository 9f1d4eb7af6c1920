from __future__ import annotations

import pytest
import torch

from packhorse.kernels import embedding, layer_norm, reference

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
HIDDEN = [20, 312, 1024, 1100]


def oracle(h, gamma, beta, eps):
    """LayerNorm in float64, from its definition."""
    h = h.double()
    centred = h - h.mean(-1, keepdim=True)
    scale = (centred.square().mean(-1, keepdim=True) + eps).rsqrt()
    return centred * scale * gamma.double() + beta.double()


def close(got, wanted):
    """One rounding to the type at the end, plus the float32 sums."""
    limit = 0.51 * torch.finfo(got.dtype).eps * wanted.abs() + 5e-6
    return bool(((got.double() - wanted).abs() <= limit).all())


def draw(shape, dtype, device):
    return torch.randn(shape).to(device, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("rows", [1, 5])
def test_residual_layer_norm(dtype, hidden, rows, device):
    x, residual = (draw((rows, hidden), dtype, device) for _ in range(2))
    bias, gamma, beta = (draw((hidden,), dtype, device) for _ in range(3))
    wanted = oracle(x.double() + residual.double() + bias.double(), gamma, beta, 1e-12)
    for module in (layer_norm, reference):
        got = module.residual_layer_norm(x, bias, residual, gamma, beta, 1e-12)
        assert got.dtype == dtype
        assert close(got, wanted)
        without = module.residual_layer_norm(x, None, residual, gamma, beta, 1e-12)
        assert (without.double() - wanted).abs().max() > 0.1, "the bias must show"
        plain = module.layer_norm(x, gamma, beta, 1e-5)
        assert close(plain, oracle(x, gamma, beta, 1e-5))


def test_a_large_mean_does_not_cost_the_variance(device):
    x = 1000 + draw((3, 768), torch.float32, device)
    gamma, beta = torch.ones(768, device=device), torch.zeros(768, device=device)
    got = layer_norm.layer_norm(x, gamma, beta, 1e-12)
    assert (got.double() - oracle(x, gamma, beta, 1e-12)).abs().max() < 1e-3


@pytest.mark.parametrize("module", [layer_norm, reference])
def test_in_place_and_from_a_wider_buffer(module, device):
    wide = draw((5, 100), torch.float32, device)
    x, residual = wide[:, :48], draw((5, 48), torch.float32, device)
    gamma, beta = (draw((48,), torch.float32, device) for _ in range(2))
    wanted = oracle(x.double() + residual.double(), gamma, beta, 1e-6)
    untouched = wide[:, 48:].clone()
    got = module.residual_layer_norm(x, None, residual, gamma, beta, 1e-6, out=x)
    assert got.data_ptr() == wide.data_ptr()
    assert close(wide[:, :48], wanted)
    assert torch.equal(wide[:, 48:], untouched)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hidden", [24, 312])
@pytest.mark.parametrize("tables", ["word", "word position", "word position type", "types given"])
def test_embedding_layer_norm(dtype, hidden, tables, device):
    tokens = 9
    word, position, kind = (draw((n, hidden), dtype, device) for n in (50, 20, 2))
    gamma, beta = (draw((hidden,), dtype, device) for _ in range(2))
    ids, places, types = (
        torch.randint(n, (tokens,), dtype=torch.int32).to(device) for n in (50, 20, 2)
    )
    position_table = position if "position" in tables or "given" in tables else None
    type_table = kind if "type" in tables else None
    given = types if "given" in tables else None

    h = word[ids.long()].double()
    if position_table is not None:
        h = h + position[places.long()].double()
    if type_table is not None:
        h = h + kind[(types if given is not None else torch.zeros_like(types)).long()].double()
    for module in (embedding, reference):
        got = module.embedding_layer_norm(
            ids, places, given, word, position_table, type_table, gamma, beta, 1e-12
        )
        assert got.dtype == dtype
        assert close(got, oracle(h, gamma, beta, 1e-12))


def test_a_row_that_is_not_finite_stays_in_its_row(device):
    x = draw((6, 64), torch.float16, device)
    x[2, 5], x[4, 0] = torch.inf, torch.nan
    gamma, beta = torch.ones(64, device=device), torch.zeros(64, device=device)
    got = layer_norm.layer_norm(x, gamma, beta, 1e-12)
    assert got.isfinite().all(1).tolist() == [True, True, False, True, False, True]
