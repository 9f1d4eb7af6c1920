from __future__ import annotations

import math

import pytest
import torch

from packhorse.kernels import pooling, reference

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
LENGTHS = [1, 5, 0, 66, 33]

FORMULAS = {
    "mean": lambda h, i: h.mean(0),
    "max": lambda h, i: h.max(0).values,
    "mean_sqrt_len": lambda h, i: h.sum(0) / math.sqrt(len(h)),
    "weighted_mean": lambda h, i: (h * i).sum(0) / i.sum(),
    "last": lambda h, i: h[-1],
}
"""By mode, for the hidden states h, (n, D), and the positions i from 1 on, (n, 1), in float64."""


def batch(hidden, dtype, device, padding=2):
    bounds = [0]
    for length in [*LENGTHS, *[0] * padding]:
        bounds.append(bounds[-1] + length)
    states = torch.randn(bounds[-1], hidden).to(device, dtype)
    return states, torch.tensor(bounds, dtype=torch.int32, device=device)


def sequences_of(states, bounds):
    pairs = zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    return [states[start:end] for start, end in pairs]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hidden", [20, 312])
@pytest.mark.parametrize("module", [pooling, reference])
def test_the_first_token_is_copied(module, hidden, dtype, device):
    states, bounds = batch(hidden, dtype, device)
    nothing = torch.zeros(hidden, device=device, dtype=dtype)
    first = module.first_token_pool(states, bounds)
    assert first.dtype == dtype
    parts = sequences_of(states, bounds)
    assert torch.equal(first, torch.stack([p[0] if len(p) else nothing for p in parts]))


@pytest.mark.parametrize("mode", FORMULAS)
@pytest.mark.parametrize(("hidden", "dtype"), [(20, torch.float16), (100, torch.bfloat16)])
@pytest.mark.parametrize("module", [pooling, reference])
def test_pools(module, hidden, dtype, mode, device):
    states, bounds = batch(hidden, dtype, device)
    nothing = torch.zeros(hidden, device=device, dtype=torch.float64)
    rows = []
    for part in sequences_of(states, bounds):
        positions = torch.arange(1, len(part) + 1, device=device, dtype=torch.float64)[:, None]
        rows.append(FORMULAS[mode](part.double(), positions) if len(part) else nothing)
    pooled = module.pool(states, bounds, mode)
    assert pooled.dtype == torch.float32
    assert (pooled.double() - torch.stack(rows)).abs().max() < 5e-6


@pytest.mark.parametrize("module", [pooling, reference])
def test_pools_write_where_they_are_told(module, device):
    states, bounds = batch(48, torch.float16, device)
    first = torch.full((len(bounds) - 1, 48), torch.nan, dtype=torch.float16, device=device)
    assert module.first_token_pool(states, bounds, out=first) is first
    assert first.isfinite().all()
    for mode in FORMULAS:
        pooled = torch.full((len(bounds) - 1, 48), torch.nan, device=device)
        assert module.pool(states, bounds, mode, out=pooled) is pooled
        assert pooled.isfinite().all()


@pytest.mark.parametrize("mode", FORMULAS)
def test_the_tail_of_the_row_belongs_to_nobody(mode, device):
    states, bounds = batch(32, torch.float32, device)
    longer = torch.cat([states, torch.full((9, 32), torch.nan, device=device)])
    assert torch.equal(pooling.pool(longer, bounds, mode), pooling.pool(states, bounds, mode))
    assert pooling.first_token_pool(longer, bounds).isfinite().all()


@pytest.mark.parametrize("module", [pooling, reference])
@pytest.mark.parametrize("mode", [mode for mode in FORMULAS if mode != "last"])
def test_what_is_not_a_number_shows_in_its_own_row_alone(module, mode, device):
    states, bounds = batch(32, torch.float32, device)
    states[bounds[3] + 40] = torch.nan
    pooled = module.pool(states, bounds, mode)
    assert pooled[3].isnan().all()
    assert pooled[torch.arange(len(pooled), device=device) != 3].isfinite().all()


@pytest.mark.parametrize("module", [pooling, reference])
def test_no_sequence_at_all_is_no_row(module, device):
    states, bounds = batch(20, torch.float16, device)
    assert module.pool(states, bounds[:1], "mean").shape == (0, 20)
    assert module.first_token_pool(states, bounds[:1]).shape == (0, 20)
