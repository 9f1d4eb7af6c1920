from __future__ import annotations

import pytest
import torch

from packhorse.kernels import pooling, reference

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
LENGTHS = [1, 5, 0, 70, 31, 33, 32]


def batch(hidden, dtype, device, padding=2):
    bounds = [0]
    for length in [*LENGTHS, *[0] * padding]:
        bounds.append(bounds[-1] + length)
    states = torch.randn(bounds[-1], hidden).to(device, dtype)
    return states, torch.tensor(bounds, dtype=torch.int32, device=device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hidden", [20, 312])
@pytest.mark.parametrize("module", [pooling, reference])
def test_pools(module, hidden, dtype, device):
    states, bounds = batch(hidden, dtype, device)
    parts = [states[a:b] for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]
    nothing = torch.zeros(hidden, device=device)

    first = module.first_token_pool(states, bounds)
    assert first.dtype == dtype
    assert torch.equal(first, torch.stack([p[0] if len(p) else nothing.to(dtype) for p in parts]))
    mean = module.mean_pool(states, bounds)
    assert mean.dtype == torch.float32
    wanted = torch.stack([p.double().mean(0) if len(p) else nothing.double() for p in parts])
    assert (mean.double() - wanted).abs().max() < 2e-6


@pytest.mark.parametrize("module", [pooling, reference])
def test_pools_write_where_they_are_told(module, device):
    states, bounds = batch(48, torch.float16, device)
    first = torch.full((len(bounds) - 1, 48), torch.nan, dtype=torch.float16, device=device)
    mean = torch.full((len(bounds) - 1, 48), torch.nan, device=device)
    assert module.first_token_pool(states, bounds, out=first) is first
    assert module.mean_pool(states, bounds, out=mean) is mean
    assert first.isfinite().all()
    assert mean.isfinite().all()


def test_the_tail_of_the_row_belongs_to_nobody(device):
    states, bounds = batch(32, torch.float32, device)
    longer = torch.cat([states, torch.full((9, 32), torch.nan, device=device)])
    assert torch.equal(pooling.mean_pool(longer, bounds), pooling.mean_pool(states, bounds))
    assert pooling.first_token_pool(longer, bounds).isfinite().all()
