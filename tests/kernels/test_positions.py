"""Windows, turned heads, disentangled scores and gated products: kernels and twins by an oracle."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from packhorse.kernels import attention, disentangled, gated, layer_norm, reference, rotary
from packhorse.kernels.reference import PositionVectors
from packhorse.models.distances import log_buckets, rotation_tables
from tests.kernels.test_attention import BATCHES, DTYPES, bounds_of, draw, error, row_bounds
from tests.kernels.test_attention import tolerance as tolerance_of_values

WINDOWS = [0, 7, 64]
HOSTILE = {name: BATCHES[name] for name in ("under a tile", "over a tile", "short")}
LONGEST = 150


def tolerance(dtype):
    """Scores of positions are rounded to the type, and then made exponentials."""
    return 4 * tolerance_of_values(dtype)


def scored(q, k, v, heads, window=None, vectors=None, scale=None):
    """Attention of one sequence in float64 NumPy: pair by pair, as the papers write it."""
    size, n = q.shape[1] // heads, len(q)
    scale = size**-0.5 if scale is None else scale
    places = np.arange(n)
    distance = places[:, None] - places
    parts = []
    for h in range(heads):
        own = slice(h * size, (h + 1) * size)
        scores = q[:, own] @ k[:, own].T
        if vectors is not None:
            middle = len(vectors.buckets) // 2
            bucket = vectors.buckets.cpu().numpy()[distance + middle]
            if vectors.keys is not None:
                keys = vectors.keys.cpu().double().numpy()[:, own]
                scores += np.einsum("id,ijd->ij", q[:, own], keys[bucket])
            if vectors.queries is not None:
                queries = vectors.queries.cpu().double().numpy()[:, own]
                scores += np.einsum("jd,ijd->ij", k[:, own], queries[bucket])
        scores *= scale
        if window is not None:
            scores[np.abs(distance) > window] = -np.inf
        weights = np.exp(scores - scores.max(1, keepdims=True))
        parts.append(weights / weights.sum(1, keepdims=True) @ v[:, own])
    return np.concatenate(parts, 1)


def oracle(qkv, lengths, heads, **options):
    """Each sequence on its own; a tail token is a sequence."""
    q, k, v = np.split(qkv.cpu().double().numpy(), 3, axis=1)
    bounds = bounds_of([*lengths, *[1] * (len(q) - sum(lengths))])
    rows = [scored(q[a:b], k[a:b], v[a:b], heads, **options) for a, b in pairwise(bounds)]
    return torch.from_numpy(np.concatenate(rows))


def vectors_of(kinds, heads, head, dtype, device, buckets=16):
    width, span = heads * head, buckets
    return PositionVectors(
        draw(2 * span, width, dtype, device) if "c2p" in kinds else None,
        draw(2 * span, width, dtype, device) if "p2c" in kinds else None,
        log_buckets(LONGEST, span, buckets, 64).to(device),
    )


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("batch", HOSTILE.values(), ids=HOSTILE)
def test_a_window_is_exact_at_its_borders(batch, window, device):
    lengths, tail = batch
    qkv = draw(sum(lengths) + tail, 3 * 16, torch.float32, device)
    wanted = oracle(qkv, lengths, 1, window=window)
    starts, ends = row_bounds(lengths, tail, device)
    for module in (attention, reference):
        got = module.packed_attention(qkv, starts, ends, 1, window=window)
        assert error(got, wanted) < tolerance_of_values(torch.float32)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.case(69)
def test_a_short_text_among_long_ones_is_finite_and_right(dtype, device):
    """Case 69: a tile whose first keys are none of a row's own."""
    lengths = [5, 63, 65, 128]
    qkv = draw(sum(lengths), 3 * 40, dtype, device)
    got = attention.packed_attention(qkv, *row_bounds(lengths, 0, device), 1, window=8)
    assert error(got, oracle(qkv, lengths, 1, window=8)) < tolerance(dtype)


def test_one_key_more_or_less_would_be_noticed(device):
    lengths = [100, 40]
    qkv = draw(140, 3 * 32, torch.float32, device)
    starts, ends = row_bounds(lengths, 0, device)
    wanted = oracle(qkv, lengths, 1, window=16)
    for window in (15, 17):
        got = attention.packed_attention(qkv, starts, ends, 1, window=window)
        assert error(got, wanted) > 1e-3


@pytest.mark.parametrize("window", [None, 0, 5, 40])
@pytest.mark.parametrize("kinds", [(), ("c2p",), ("p2c",), ("c2p", "p2c")])
def test_first_tokens_equal_the_rows_of_all(kinds, window, device):
    lengths, heads, head, scale = [70, 1, 3, 33, 60], 2, 20, 0.1
    width = heads * head
    qkv = draw(sum(lengths), 3 * width, torch.float32, device)
    vectors = vectors_of(kinds, heads, head, torch.float32, device) if kinds else None
    wanted = oracle(qkv, lengths, heads, window=window, vectors=vectors, scale=scale)
    firsts = bounds_of(lengths)
    bounds = torch.from_numpy(np.append(firsts, firsts[-1])).int().to(device)
    query = torch.cat([qkv[firsts[:-1], :width], qkv[:1, :width]]).contiguous()
    for module in (attention, reference):
        got = module.cls_attention(
            query, qkv[:, width:], bounds, heads, window=window, vectors=vectors, scale=scale
        )
        assert error(got[:-1], wanted[firsts[:-1]]) < tolerance_of_values(torch.float32)
        assert not got[-1].any(), "padding gives zeros"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kinds", [("c2p",), ("p2c",), ("c2p", "p2c")])
@pytest.mark.parametrize(
    ("lengths", "tail", "heads", "head"),
    [([1, 70, 5, 31, 2], 9, 2, 20), ([33, 1, 1, 64], 3, 1, 64)],
)
def test_scores_of_positions_are_added(lengths, tail, heads, head, kinds, dtype, device):
    qkv = draw(sum(lengths) + tail, 3 * heads * head, dtype, device)
    vectors = vectors_of(kinds, heads, head, dtype, device)
    scale = (head * (1 + len(kinds))) ** -0.5
    wanted = oracle(qkv, lengths, heads, vectors=vectors, scale=scale)
    starts, ends = row_bounds(lengths, tail, device)
    for scores, attend in ((disentangled, attention), (reference, reference)):
        room = torch.full((2 * len(qkv) * heads * 32,), torch.nan, dtype=dtype, device=device)
        tables = scores.position_scores(qkv, starts, ends, heads, vectors, scale, out=room)
        got = attend.packed_attention(qkv, starts, ends, heads, positions=tables, scale=scale)
        assert error(got, wanted) < tolerance(dtype)
    turned = vectors._replace(buckets=vectors.buckets.flip(0))
    assert error(oracle(qkv, lengths, heads, vectors=turned, scale=scale), wanted) > 0.02


def test_every_distance_has_the_bucket_of_transformers():
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    for span, longest in ((16, 64), (256, 512), (32, 512), (4, 40)):
        distances = torch.arange(-longest + 1, longest)
        wanted = make_log_bucket_position(distances, span, longest).long() + span
        got = log_buckets(longest, span, span, longest)
        assert torch.equal(got.long(), wanted.clamp(0, 2 * span - 1))
        assert bool((got.diff() >= 0).all()), "the kernel takes a range of them"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "head"), [(1, 16), (4, 20), (24, 64), (3, 128)])
def test_heads_are_turned_in_place(heads, head, dtype, device):
    tokens, rest = 37, 24
    x = draw(tokens, heads * head + rest, dtype, device)
    positions = torch.randint(50, (tokens,)).int().to(device)
    cos, sin = (table.to(device) for table in rotation_tables(100.0, 50, head))
    pairs = x[:, : heads * head].double().cpu().view(tokens, heads, 2, head // 2)
    turned = torch.complex(pairs[:, :, 0], pairs[:, :, 1]) * torch.complex(
        cos.double().cpu()[positions.cpu().long()], sin.double().cpu()[positions.cpu().long()]
    ).unsqueeze(1)
    wanted = torch.stack([turned.real, turned.imag], 2).view(tokens, -1)
    for module in (rotary, reference):
        got = x.clone()
        assert module.rotate(got, positions, cos, sin, heads) is got
        step = torch.finfo(dtype).eps * wanted.abs() + 1e-6
        assert bool(((got[:, : heads * head].cpu().double() - wanted).abs() <= step).all())
        assert torch.equal(got[:, heads * head :], x[:, heads * head :])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ["gelu", "silu"])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 70), (5, 1152)])
def test_the_gate_is_applied(rows, width, activation, dtype, device):
    x = draw(rows, 2 * width, dtype, device)
    a, b = x.cpu().double().chunk(2, -1)
    wanted = reference.ACTIVATIONS[activation](a) * b
    for module in (gated, reference):
        got = module.gate(x, activation)
        step = 2 * torch.finfo(dtype).eps * wanted.abs() + 1e-5
        assert bool(((got.cpu().double() - wanted).abs() <= step).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_sum_is_kept_and_normalised(dtype, device):
    x, residual = draw(33, 70, dtype, device), draw(33, 70, dtype, device)
    gamma, beta = draw(1, 70, dtype, device)[0], draw(1, 70, dtype, device)[0]
    summed = x.double() + residual.double()
    wanted = torch.nn.functional.layer_norm(summed, (70,), gamma.double(), beta.double(), 1e-5)
    for module in (layer_norm, reference):
        kept, into = residual.clone(), x.clone()
        got = module.add_layer_norm(into, kept, gamma, beta, 1e-5, out=into)
        assert got is into
        assert error(kept, summed.cpu()) < 4 * torch.finfo(dtype).eps * 2
        assert error(got, wanted.cpu()) < 4 * torch.finfo(dtype).eps * 4
