"""The kernels as compiled, on a GPU: every type, fuzzed mixes of lengths, graphs, wide rows."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from packhorse import kernels
from packhorse.kernels import reference, tiles
from packhorse.models.distances import log_buckets, rotation_tables

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

DTYPES = [torch.float16, torch.bfloat16, torch.float32]


@pytest.fixture(scope="module")
def ops() -> kernels.Ops:
    selected = kernels.select("cuda")
    if selected.name != "triton":
        pytest.skip(selected.reason)
    return selected


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def bounds_of(lengths):
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device="cuda")


def draw(*shape, dtype):
    return torch.randn(*shape, device="cuda").to(dtype)


def attention_tolerance(dtype):
    """TF32 would be off by 1e-3: float32 is float32."""
    return {torch.float16: 3e-3, torch.bfloat16: 2.5e-2, torch.float32: 1e-5}[dtype]


def oracle(qkv, lengths, heads):
    """softmax(q k^T / sqrt d) v of each sequence on its own, in float64."""
    tail = len(qkv) - sum(lengths)
    rows = []
    for part in qkv.double().split([*lengths, *[1] * tail]):
        q, k, v = part.view(len(part), 3, heads, -1).permute(1, 2, 0, 3)
        weights = (q @ k.transpose(1, 2) * q.shape[-1] ** -0.5).softmax(-1)
        rows.append((weights @ v).transpose(0, 1).reshape(len(part), -1))
    return torch.cat(rows)


def fuzzed_lengths(seed):
    """A mix of ones, tile borders, short texts and long ones."""
    rng = random.Random(seed)
    kinds = [
        lambda: 1,
        lambda: rng.choice([31, 32, 33, 63, 64, 65, 127, 128, 129]),
        lambda: min(128, 2 + int(rng.lognormvariate(3, 0.6))),
        lambda: rng.randint(200, 512),
    ]
    weights = [rng.random() ** 3 for _ in kinds]
    return [rng.choices(kinds, weights)[0]() for _ in range(rng.randint(1, 60))]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attention_of_fuzzed_batches(ops, dtype, seed):
    lengths = fuzzed_lengths(seed)
    tail = seed % 3 * 37
    heads, head = [(3, 64), (2, 32), (2, 128), (3, 80), (2, 48), (1, 20)][seed % 6]
    width, tokens = heads * head, sum(lengths) + tail
    bounds, count = bounds_of(lengths), torch.tensor([len(lengths)]).int().cuda()
    qkv = draw(tokens, 3 * width, dtype=dtype)
    _, starts, ends = ops.expand(bounds, count, tokens)
    wanted = oracle(qkv, lengths, heads)
    out = torch.full((tokens, width), torch.nan, dtype=dtype, device="cuda")
    got = ops.packed_attention(qkv, starts, ends, heads, out=out)
    assert (got.double() - wanted).abs().max() < attention_tolerance(dtype)

    padded = torch.cat([bounds, bounds[-1:].expand(5)])
    query = ops.first_token_pool(qkv[:, :width], padded)
    first = ops.cls_attention(query, qkv[:, width:], padded, heads)
    firsts = wanted[bounds[:-1].long()]
    assert (first[: len(lengths)].double() - firsts).abs().max() < attention_tolerance(dtype)
    assert not first[len(lengths) :].any()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hidden", [312, 384, 768, 1024, 4096])
def test_the_rest_agrees_with_its_twin(ops, dtype, hidden, seed):
    lengths = fuzzed_lengths(seed)
    tokens = sum(lengths)
    bounds, count = bounds_of(lengths), torch.tensor([len(lengths)]).int().cuda()
    x, residual = (draw(tokens, hidden, dtype=dtype) for _ in range(2))
    bias, gamma, beta = (draw(hidden, dtype=dtype) for _ in range(3))
    ids, kinds = (torch.randint(n, (tokens,), device="cuda").int() for n in (300, 2))
    word, position, type_ = (draw(n, hidden, dtype=dtype) for n in (300, 1000, 2))
    positions, starts, ends = ops.expand(bounds, count, tokens)

    def same(name, *arguments):
        got = getattr(ops, name)(*arguments)
        wanted = getattr(reference, name)(*arguments)
        step = torch.finfo(got.dtype).eps
        torch.testing.assert_close(got, wanted, rtol=1.01 * step, atol=1e-5)

    for got, wanted in zip(
        (positions, starts, ends), reference.expand(bounds, count, tokens), strict=True
    ):
        assert torch.equal(got, wanted)
    same("embedding_layer_norm", ids, positions, kinds, word, position, type_, gamma, beta, 1e-12)
    same("layer_norm", x, gamma, beta, 1e-5)
    same("residual_layer_norm", x, bias, residual, gamma, beta, 1e-12)
    for activation in reference.ACTIVATIONS:
        same("bias_activation", x, bias, activation)
    up = draw(2 * hidden, hidden, dtype=dtype) / hidden**0.5
    inner = torch.cat([bias, bias])
    product = ops.linear_activation(x, up, inner, "gelu")
    wanted = torch.nn.functional.gelu(x.double() @ up.double().t() + inner.double())
    assert (product.double() - wanted).abs().max() < 5 * torch.finfo(dtype).eps + 3e-5
    for mode in ("mean", "max", "mean_sqrt_len", "weighted_mean", "last"):
        same("pool", x, bounds, mode)
    same("first_token_pool", x, bounds)


def test_a_captured_graph_serves_other_batches(ops):
    tokens, most, heads, width = 512, 64, 4, 256
    bounds = torch.zeros(most + 1, dtype=torch.int32, device="cuda")
    count = torch.zeros(1, dtype=torch.int32, device="cuda")
    qkv = draw(tokens, 3 * width, dtype=torch.float16)

    def forward():
        _, starts, ends = ops.expand(bounds, count, tokens)
        y = ops.packed_attention(qkv, starts, ends, heads)
        return y, ops.first_token_pool(y, bounds), ops.pool(y, bounds, "mean")

    def load(lengths):
        padded = bounds_of(lengths + [0] * (most - len(lengths)))
        bounds.copy_(padded)
        count.fill_(len(lengths))

    load([3])
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        forward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = forward()
    for lengths in ([512], [1] * 64, [100, 1, 200, 64], [], [64] * 8):
        load(lengths)
        graph.replay()
        wanted = oracle(qkv, lengths, heads)
        y, first, mean = (x.double() for x in outputs)
        assert (y - wanted).abs().max() < 3e-3
        for i, part in enumerate(wanted.split([*lengths, tokens - sum(lengths)])[:-1]):
            assert (first[i] - part[0]).abs().max() < 3e-3
            assert (mean[i] - part.mean(0)).abs().max() < 3e-3
        assert not first[len(lengths) :].any()
        assert not mean[len(lengths) :].any()


def test_a_row_beyond_32_bit_addresses(ops):
    tokens, heads, width = 720_000, 16, 1024  # 720,000 x 3,072 > 2^31
    if torch.cuda.mem_get_info()[0] < 20 * 2**30:
        pytest.skip("needs 20 GB of GPU memory")
    qkv = torch.zeros(tokens, 3 * width, dtype=torch.float16, device="cuda")
    last = draw(300, 3 * width, dtype=torch.float16)
    qkv[-300:] = last
    lengths = [1000] * 719 + [700, 100, 200]
    bounds, count = bounds_of(lengths), torch.tensor([len(lengths)]).int().cuda()
    _, starts, ends = ops.expand(bounds, count, tokens)
    got = ops.packed_attention(qkv, starts, ends, heads)
    assert (got[-300:].double() - oracle(last, [100, 200], heads)).abs().max() < 3e-3
    assert not got[:-300].any()
    gamma, beta = torch.ones(3 * width, device="cuda"), torch.zeros(3 * width, device="cuda")
    torch.testing.assert_close(
        ops.layer_norm(qkv, gamma, beta, 1e-12)[-300:],
        reference.layer_norm(last, gamma, beta, 1e-12), rtol=1e-3, atol=1e-5,
    )  # fmt: skip
    assert torch.equal(ops.bias_activation(qkv, None, "relu", out=qkv)[-300:], last.relu())


def test_no_length_of_row_compiles_anew(ops):
    """Neither T = 1 nor a T that 16 does not divide may compile while serving."""
    from packhorse.kernels import attention, embedding, few_rows, layer_norm, layout, mlp

    compiled = [
        attention._packed_attention, embedding._embedding_layer_norm, layer_norm._layer_norm,
        layout._expand, mlp._bias_activation, few_rows._few_rows, few_rows._add_residual_norm,
    ]  # fmt: skip
    square = draw(64, 64, dtype=torch.float16)

    def run(tokens):
        bounds, count = bounds_of([tokens]), torch.ones(1, dtype=torch.int32, device="cuda")
        x, v = draw(tokens, 64, dtype=torch.float16), draw(64, dtype=torch.float16)
        positions, starts, ends = ops.expand(bounds, count, tokens)
        ops.embedding_layer_norm(positions, positions, None, x, x, x, v, v, 1e-12)
        ops.packed_attention(draw(tokens, 192, dtype=torch.float16), starts, ends, 2)
        ops.residual_layer_norm(x, v, x, v, v, 1e-12)
        ops.bias_activation(x, v, "gelu")
        ops.linear(x, square, v)
        ops.linear_residual_norm(x, square, v, x, v, v, 1e-12)

    def versions():
        return [len(f.device_caches[torch.cuda.current_device()][0]) for f in compiled]

    for tokens in (*tiles.FEW_ROWS_STEPS, 1000):  # each has tiles of its own
        run(tokens)
    before = versions()
    for tokens in (1, 2, 15, 17, 47, 65, 127, 129, 1001):
        run(tokens)
    assert versions() == before


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("hidden", "width"), [(768, 768), (768, 2304), (3072, 768), (312, 1248), (1248, 312), (200, 40)]
)
def test_products_of_few_rows(ops, hidden, width, dtype):
    eps = torch.finfo(dtype).eps
    for rows in (1, 2, 16, 17, 33, 48, 63, 64, 65, 130):
        x, residual = draw(rows, hidden, dtype=dtype), draw(rows, width, dtype=dtype)
        weight = draw(width, hidden, dtype=dtype) / hidden**0.5
        bias, gamma, beta = (draw(width, dtype=dtype) for _ in range(3))
        h = x.double() @ weight.double().t() + bias.double()
        out = torch.full((rows, width), torch.nan, dtype=dtype, device="cuda")
        assert (ops.linear(x, weight, bias, out=out).double() - h).abs().max() < 4 * eps
        gelu = torch.nn.functional.gelu(h)
        out.fill_(torch.nan)
        got = ops.linear_activation(x, weight, bias, "gelu", out=out)
        assert (got.double() - gelu).abs().max() < 5 * eps
        summed = h + residual.double()
        normal = torch.nn.functional.layer_norm(
            summed, (width,), gamma.double(), beta.double(), 1e-6
        )
        out.fill_(torch.nan)
        got = ops.linear_residual_norm(x, weight, bias, residual, gamma, beta, 1e-6, out=out)
        assert (got.double() - normal).abs().max() < 10 * eps


@pytest.mark.parametrize("count", [1, 3, 8, 9, 414, 600])
def test_head_layers(ops, count):
    x, weight = draw(count, 768, dtype=torch.float16), draw(768, 768, dtype=torch.float32) / 28
    bias = draw(768, dtype=torch.float32)
    wanted = (x.double() @ weight.double().t() + bias.double()).tanh()
    got = ops.head_layer(x, weight, bias, "tanh")
    assert (got.double() - wanted).abs().max() < 1e-5
    labels = torch.full((count, 3), torch.nan, device="cuda")
    ops.head_layer(got, weight[:3], bias[:3], None, out=labels)
    wanted = got.double() @ weight[:3].double().t() + bias[:3].double()
    assert (labels.double() - wanted).abs().max() < 1e-5


def test_kernels_that_overlap_wait_for_each_other(ops):
    """A chain in which each launch needs the one before it: every replay gives the same bits."""
    width, wide, rows = 768, 3072, 48
    vector, bias = draw(width, dtype=torch.float16), draw(wide, dtype=torch.float16)
    layers = [
        (draw(wide, width, dtype=torch.float16) / 28, draw(width, wide, dtype=torch.float16) / 55)
        for _ in range(6)
    ]
    start = torch.empty(rows, width, dtype=torch.float16, device="cuda")

    def forward():
        x = start
        for up, down in layers:
            inner = ops.linear_activation(x, up, bias, "gelu")
            x = ops.linear_residual_norm(inner, down, vector, x, vector, vector, 1e-12)
        return x

    start.copy_(draw(rows, width, dtype=torch.float16))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        forward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = forward()
    for _ in range(20):
        start.copy_(draw(rows, width, dtype=torch.float16))
        graph.replay()
        first = result.clone()
        assert first.isfinite().all()
        torch.cuda.synchronize()
        assert torch.equal(forward(), first)
        for _ in range(20):
            result.fill_(torch.nan)
            graph.replay()
            assert torch.equal(result, first)


def related_oracle(qkv, lengths, heads, window, vectors, scale):
    """``oracle`` with far keys hidden and scores of positions added, pair by pair."""
    rows = []
    for part in qkv.double().split(lengths):
        q, k, v = part.view(len(part), 3, heads, -1).permute(1, 2, 0, 3)
        places = torch.arange(len(part), device="cuda")
        distance = places[:, None] - places
        scores = q @ k.transpose(1, 2)
        if vectors is not None:
            bucket = vectors.buckets.long()[distance + len(vectors.buckets) // 2]
            by_head = [t.double().view(len(t), heads, -1).transpose(0, 1) for t in vectors[:2]]
            c2p, p2c = q @ by_head[0].transpose(1, 2), k @ by_head[1].transpose(1, 2)
            scores = scores + c2p.gather(2, bucket.expand(heads, -1, -1))
            columns = bucket.t().expand(heads, -1, -1)
            scores = scores + p2c.gather(2, columns).transpose(1, 2)
        scores = scores * scale
        if window is not None:
            scores = scores.masked_fill(distance.abs() > window, -torch.inf)
        rows.append((scores.softmax(-1) @ v).transpose(0, 1).reshape(len(part), -1))
    return torch.cat(rows)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("window", "disentangled"), [(64, False), (8, False), (None, True), (20, True)]
)
@pytest.mark.case(69)
def test_windows_and_positions_in_fuzzed_batches(ops, dtype, seed, window, disentangled):
    lengths = fuzzed_lengths(seed)
    heads, head = [(3, 64), (2, 32), (2, 128), (2, 48)][seed]
    width, tokens, scale = heads * head, sum(lengths), (3 * head) ** -0.5
    bounds, count = bounds_of(lengths), torch.tensor([len(lengths)]).int().cuda()
    qkv = draw(tokens, 3 * width, dtype=dtype)
    _, starts, ends = ops.expand(bounds, count, tokens)
    vectors = positions = None
    if disentangled:
        buckets = log_buckets(512, 256, 256, 512).cuda()
        tables = (draw(512, width, dtype=dtype) for _ in range(2))
        vectors = reference.PositionVectors(*tables, buckets)
        positions = ops.position_scores(qkv, starts, ends, heads, vectors, scale)
    wanted = related_oracle(qkv, lengths, heads, window, vectors, scale)
    got = ops.packed_attention(
        qkv, starts, ends, heads, window=window, positions=positions, scale=scale
    )
    # Scores of positions are rounded to the type before they are exponents.
    assert (got.double() - wanted).abs().max() < 4 * attention_tolerance(dtype)
    query = ops.first_token_pool(qkv[:, :width], bounds)
    first = ops.cls_attention(
        query, qkv[:, width:], bounds, heads, window=window, vectors=vectors, scale=scale
    )
    firsts = wanted[bounds[:-1].long()]
    assert (first.double() - firsts).abs().max() < 4 * attention_tolerance(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("hidden", "width"), [(768, 1152), (64, 96), (1024, 2624), (40, 20)])
def test_gated_products_turns_and_kept_sums(ops, dtype, hidden, width):
    eps = torch.finfo(dtype).eps
    for rows in (1, 48, 65, 300, 5000):
        x = draw(rows, hidden, dtype=dtype)
        weight = draw(2 * width, hidden, dtype=dtype) / hidden**0.5
        a, b = (x.double() @ weight.double().t()).chunk(2, -1)
        wanted = torch.nn.functional.gelu(a) * b
        got = ops.linear_gated(x, weight, None, "gelu").double()
        assert ((got - wanted).abs() <= 8 * eps * (wanted.abs() + 1) + 3e-5).all()
    x, residual = draw(5000, hidden, dtype=dtype), draw(5000, hidden, dtype=dtype)
    gamma, beta = draw(hidden, dtype=dtype), draw(hidden, dtype=dtype)
    kept, expected = residual.clone(), residual.clone()
    got = ops.add_layer_norm(x, kept, gamma, beta, 1e-5)
    same = reference.add_layer_norm(x, expected, gamma, beta, 1e-5)
    torch.testing.assert_close(got, same, rtol=1.01 * eps, atol=1e-5)
    assert torch.equal(kept, expected)
    cos, sin = (table.cuda() for table in rotation_tables(10_000.0, 512, 20))
    turned, positions = draw(700, 130, dtype=dtype), torch.randint(512, (700,)).int().cuda()
    wanted = reference.rotate(turned.clone(), positions, cos, sin, 6)
    got = ops.rotate(turned, positions, cos, sin, 6)
    torch.testing.assert_close(got, wanted, rtol=2 * eps, atol=1e-5)
