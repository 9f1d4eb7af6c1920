from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from packhorse.kernels import attention, pooling, reference

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
HEADS = [16, 20, 24, 32, 48, 64, 80, 96, 128]
BATCHES = {
    "one token": ([1], 0),
    "one long": ([150], 0),
    "many of one": ([1] * 70, 3),
    "under a tile": ([63, 65, 1, 2], 5),
    "at tiles": ([64, 64, 128], 0),
    "over a tile": ([65, 63, 129, 31, 33], 1),
    "short": ([25, 7, 40, 12, 3, 31, 18, 22], 34),
}


def tolerance(dtype):
    """Of a mean of values near 1 whose weights are rounded to the type."""
    return {torch.float16: 2e-3, torch.bfloat16: 2.5e-2, torch.float32: 3e-6}[dtype]


def bounds_of(lengths):
    return np.concatenate([[0], np.cumsum(lengths)])


def attend(q, k, v, heads):
    """softmax(q k^T / sqrt d) v of one sequence in float64 NumPy: (queries, D) by (keys, D)."""
    size = q.shape[1] // heads
    parts = []
    for h in range(heads):
        own = slice(h * size, (h + 1) * size)
        scores = q[:, own] @ k[:, own].T / np.sqrt(size)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        parts.append(weights / weights.sum(1, keepdims=True) @ v[:, own])
    return np.concatenate(parts, 1)


def oracle(qkv, lengths, heads):
    """Each sequence on its own; a tail token is a sequence."""
    q, k, v = np.split(qkv.cpu().double().numpy(), 3, axis=1)
    bounds = bounds_of([*lengths, *[1] * (len(q) - sum(lengths))])
    rows = [attend(q[a:b], k[a:b], v[a:b], heads) for a, b in pairwise(bounds)]
    return torch.from_numpy(np.concatenate(rows))


def row_bounds(lengths, tail, device):
    count = torch.tensor([len(lengths)], dtype=torch.int32)
    bounds = torch.from_numpy(bounds_of(lengths)).int()
    _, starts, ends = reference.expand(bounds, count, sum(lengths) + tail)
    return starts.to(device), ends.to(device)


def draw(tokens, width, dtype, device, scale=1.0):
    return (scale * torch.randn(tokens, width)).to(device, dtype)


def error(got, wanted):
    return (got.cpu().double() - wanted).abs().max().item()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_packed_attention_of_batches(batch, dtype, device):
    lengths, tail = batch
    qkv = draw(sum(lengths) + tail, 3 * 32, dtype, device)
    wanted = oracle(qkv, lengths, 1)
    starts, ends = row_bounds(lengths, tail, device)
    for module in (attention, reference):
        got = module.packed_attention(qkv, starts, ends, 1)
        assert got.dtype == dtype
        assert error(got, wanted) < tolerance(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head", HEADS)
def test_packed_attention_of_head_sizes(head, dtype, device):
    lengths, tail = [40, 1, 30], 2
    qkv = draw(sum(lengths) + tail, 3 * 2 * head, dtype, device)
    got = attention.packed_attention(qkv, *row_bounds(lengths, tail, device), 2)
    assert error(got, oracle(qkv, lengths, 2)) < tolerance(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_packed_attention_of_sharp_scores(dtype, device):
    """Scores of some hundreds: the running maximum has work to do, in blocks and between."""
    lengths = [200, 9, 61]
    qkv = draw(270, 3 * 32, dtype, device)
    qkv[:, :32] *= 60
    got = attention.packed_attention(qkv, *row_bounds(lengths, 0, device), 1)
    assert error(got, oracle(qkv, lengths, 1)) < 3 * tolerance(dtype) + 5e-4


@pytest.mark.parametrize("module", [attention, reference])
def test_packed_attention_between_wider_buffers(module, device):
    lengths = [30, 50]
    wide = draw(80, 3 * 32 + 16, torch.float32, device)
    qkv = wide[:, : 3 * 32]
    into = torch.full((80, 64), 7.0, device=device)
    starts, ends = row_bounds(lengths, 0, device)
    if module is reference:
        qkv = qkv.contiguous()
    got = module.packed_attention(qkv, starts, ends, 2, out=into[:, :32])
    assert got.data_ptr() == into.data_ptr()
    assert error(into[:, :32], oracle(qkv, lengths, 2)) < tolerance(torch.float32)
    assert bool((into[:, 32:] == 7).all())


def test_a_neighbours_key_would_be_noticed(device):
    lengths = [40, 30]
    qkv = draw(70, 3 * 32, torch.float16, device)
    starts, ends = row_bounds(lengths, 0, device)
    wanted = oracle(qkv, lengths, 1)
    assert error(attention.packed_attention(qkv, starts, ends, 1), wanted) < 2e-3
    ends[:40] += 1
    assert error(attention.packed_attention(qkv, starts, ends, 1), wanted) > 2e-2


@pytest.mark.parametrize("poison", [torch.inf, torch.nan])
def test_poison_stays_in_the_tiles_it_touches(poison, device):
    lengths = [50, 30, 60, 100, 100]
    qkv = draw(340, 3 * 32, torch.float16, device)
    wanted = oracle(qkv, lengths, 1)
    qkv[60, 64:] = poison  # a value of the second sequence, which lies in tiles 0 and 1
    got = attention.packed_attention(qkv, *row_bounds(lengths, 0, device), 1).cpu()
    assert not got[50:80].isfinite().any(), "its own rows must show it"
    finite = got.isfinite().all(1)
    assert finite[128:].all()
    assert error(got[finite], wanted[finite]) < 2e-3, "a finite row is right"


@pytest.mark.parametrize("poison", [torch.inf, torch.nan])
def test_keys_and_queries_do_not_spread(poison, device):
    lengths = [20, 30, 10]
    qkv = draw(60, 3 * 32, torch.float16, device)
    wanted = oracle(qkv, lengths, 1)
    qkv[25, :64] = poison
    got = attention.packed_attention(qkv, *row_bounds(lengths, 0, device), 1).cpu()
    others = torch.cat([torch.arange(20), torch.arange(50, 60)])
    assert error(got[others], wanted[others]) < 2e-3
    assert not got[25].isfinite().any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head", [16, 20, 64, 80])
def test_cls_attention(head, dtype, device):
    lengths, heads = [1, 33, 50, 15, 16, 0, 17], 2
    bounds = bounds_of(lengths)
    padded = torch.from_numpy(np.concatenate([bounds, [bounds[-1]] * 3])).int().to(device)
    query = draw(len(padded) - 1, heads * head, dtype, device)
    kv = draw(bounds[-1] + 4, 2 * heads * head, dtype, device)
    q, (k, v) = query.cpu().double().numpy(), np.split(kv.cpu().double().numpy(), 2, axis=1)
    wanted = np.zeros(q.shape)
    for i, (a, b) in enumerate(pairwise(bounds)):
        if a < b:
            wanted[i] = attend(q[i : i + 1], k[a:b], v[a:b], heads)[0]
    for module in (attention, reference):
        got = module.cls_attention(query, kv, padded, heads)
        assert got.dtype == dtype
        assert error(got, torch.from_numpy(wanted)) < tolerance(dtype)
        assert not got[len(lengths) :].any(), "padding gives zeros"


def test_cls_attention_is_the_first_row_of_packed_attention(device):
    lengths = [70, 3, 25]
    qkv = draw(98, 3 * 64, torch.float32, device)
    starts, ends = row_bounds(lengths, 0, device)
    bounds = torch.from_numpy(bounds_of(lengths)).int().to(device)
    whole = attention.packed_attention(qkv, starts, ends, 2)
    query = pooling.first_token_pool(qkv[:, :64], bounds)
    first = attention.cls_attention(query, qkv[:, 64:], bounds, 2)
    assert error(first, whole[bounds[:-1].long()].cpu().double()) < tolerance(torch.float32)


def test_cls_attention_writes_where_it_is_told(device):
    bounds = torch.tensor([0, 4, 9], dtype=torch.int32, device=device)
    query, kv = draw(2, 32, torch.float32, device), draw(9, 64, torch.float32, device)
    out = torch.empty(2, 32, device=device)
    wanted = reference.cls_attention(query, kv, bounds, 2)
    assert attention.cls_attention(query, kv, bounds, 2, out=out) is out
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-6)


def biased_oracle(qkv, lengths, heads, bias):
    """As ``oracle``, with bias[h, key - query + L - 1] added to every score."""
    middle, size = bias.shape[1] // 2, qkv.shape[1] // 3 // heads
    q, k, v = np.split(qkv.cpu().double().numpy(), 3, axis=1)
    rows = []
    for a, b in pairwise(bounds_of(lengths)):
        places = np.arange(b - a)
        by_pair = bias.cpu().double().numpy()[:, places[None, :] - places[:, None] + middle]
        parts = []
        for h in range(heads):
            own = slice(h * size, (h + 1) * size)
            scores = q[a:b, own] @ k[a:b, own].T / np.sqrt(size) + by_pair[h]
            weights = np.exp(scores - scores.max(1, keepdims=True))
            parts.append(weights / weights.sum(1, keepdims=True) @ v[a:b, own])
        rows.append(np.concatenate(parts, 1))
    return torch.from_numpy(np.concatenate(rows))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_bias_by_distance_is_added_to_the_scores(dtype, device):
    lengths, heads, width = [70, 1, 5, 130, 64], 2, 40
    qkv = draw(sum(lengths), 3 * width, dtype, device)
    bias = torch.randn(heads, 2 * 130 - 1, device=device)
    wanted = biased_oracle(qkv, lengths, heads, bias)
    starts, ends = row_bounds(lengths, 0, device)
    firsts = bounds_of(lengths)
    bounds = torch.from_numpy(firsts).int().to(device)
    query, kv = qkv[firsts[:-1], :width], qkv[:, width:]
    for module in (attention, reference):
        got = module.packed_attention(qkv, starts, ends, heads, bias)
        assert error(got, wanted) < 2 * tolerance(dtype)
        got = module.cls_attention(query.contiguous(), kv, bounds, heads, bias)
        assert error(got, wanted[firsts[:-1]]) < 2 * tolerance(dtype)
        flipped = module.packed_attention(qkv, starts, ends, heads, bias.flip(1))
        assert error(flipped, wanted) > 0.1
