"""How far each kernel is from what the GPU can do.

    python benchmarks/kernels.py                      the table
    python benchmarks/kernels.py --json kernels.json  and everything measured
    python benchmarks/kernels.py --sweep              tile sizes, to be pinned in kernels/tiles.py
    python benchmarks/kernels.py --products           matrix products, and the GELU between them

The physics first: the bandwidth of a large copy and the rate of a large matrix
product on this GPU, now. Then each kernel at the shape of bert-base, on buffers
that rotate through four times the L2, as replays of a CUDA graph (so that
Python launches nothing), and its distance from them. Bytes are those that must
move, each once; operations are those of pairs of tokens in one sequence.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate, groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import triton

from packhorse.kernels import attention, embedding, layer_norm, layout, mlp, pooling, tiles
from packhorse.kernels.tiles import AttentionTile, ProductTile, Tile

HIDDEN, HEADS, WIDE, VOCABULARY, POSITIONS = 768, 12, 3072, 30522, 512
TOKENS = (1024, 4096, 16384)
DTYPE = torch.float16

Run = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """One launch on buffers of its own, and what it must move and compute."""

    run: Run
    bytes: int
    operations: int = 0


# What is measured ---------------------------------------------------------------------------


def review_lengths(tokens: int, file: Path | None) -> list[int]:
    """Lengths of short texts (log-normal, mean 25, at most 128; or a file's) that fill a row."""
    rng = np.random.default_rng(0)
    if file is None:
        pool = rng.lognormal(math.log(22.5), 0.45, 4096).round().clip(3, 128).astype(int)
    else:
        pool = np.loadtxt(file, dtype=int)
    lengths: list[int] = []
    left = tokens
    for length in rng.choice(pool, tokens):
        lengths.append(min(int(length), left))
        left -= lengths[-1]
        if not left:
            break
    return lengths


def cases(lengths: list[int], heads: int = HEADS) -> dict[str, Callable[[], Case]]:
    """Each kernel at the shape of bert-base; a call makes a case with fresh buffers."""
    tokens, count, size = sum(lengths), len(lengths), DTYPE.itemsize
    bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device="cuda")
    number = torch.tensor([count], dtype=torch.int32, device="cuda")
    positions, starts, ends = layout.expand(bounds, number, tokens)
    vector, wide = draw(HIDDEN), draw(WIDE)
    tables = draw(VOCABULARY, HIDDEN), draw(POSITIONS, HIDDEN), draw(2, HIDDEN)
    row, pairs = tokens * HIDDEN * size, sum(length**2 for length in lengths)

    def expand() -> Case:
        out = layout.expand(bounds, number, tokens)
        return Case(lambda: layout.expand(bounds, number, tokens, out=out), 12 * tokens)

    def embed() -> Case:
        ids = torch.randint(VOCABULARY, (tokens,), device="cuda").int()
        out = torch.empty(tokens, HIDDEN, dtype=DTYPE, device="cuda")
        arguments = (ids, positions, None, *tables, vector, vector, 1e-12)
        return Case(lambda: embedding.embedding_layer_norm(*arguments, out=out), 2 * row)

    def residual() -> Case:
        x, skip, out = (draw(tokens, HIDDEN) for _ in range(3))
        arguments = (x, vector, skip, vector, vector, 1e-12)
        return Case(lambda: layer_norm.residual_layer_norm(*arguments, out=out), 3 * row)

    def norm() -> Case:
        x, out = draw(tokens, HIDDEN), draw(tokens, HIDDEN)
        return Case(lambda: layer_norm.layer_norm(x, vector, vector, 1e-12, out=out), 2 * row)

    def gelu() -> Case:
        x, out = draw(tokens, WIDE), draw(tokens, WIDE)
        return Case(lambda: mlp.bias_activation(x, wide, "gelu", out=out), 2 * x.nbytes)

    def linear() -> Case:
        x, weight, out = draw(tokens, HIDDEN), draw(WIDE, HIDDEN), draw(tokens, WIDE)
        run = lambda: mlp.linear_activation(x, weight, wide, "gelu", out=out)  # noqa: E731
        return Case(run, x.nbytes + weight.nbytes + out.nbytes, 2 * tokens * HIDDEN * WIDE)

    def packed() -> Case:
        qkv, out = draw(tokens, 3 * HIDDEN), draw(tokens, HIDDEN)
        run = lambda: attention.packed_attention(qkv, starts, ends, heads, out=out)  # noqa: E731
        return Case(run, 4 * row, 4 * HIDDEN * pairs)

    def cls() -> Case:
        query, kv, out = draw(count, HIDDEN), draw(tokens, 2 * HIDDEN), draw(count, HIDDEN)
        run = lambda: attention.cls_attention(query, kv, bounds, heads, out=out)  # noqa: E731
        return Case(run, 2 * row + 2 * query.nbytes, 4 * HIDDEN * tokens)

    def first() -> Case:
        x, out = draw(tokens, HIDDEN), draw(count, HIDDEN)
        return Case(lambda: pooling.first_token_pool(x, bounds, out=out), 2 * out.nbytes)

    def mean() -> Case:
        x, out = draw(tokens, HIDDEN), draw(count, HIDDEN).float()
        return Case(lambda: pooling.mean_pool(x, bounds, out=out), row + out.nbytes)

    def copy() -> Case:
        x, out = draw(tokens, HIDDEN), draw(tokens, HIDDEN)
        return Case(lambda: torch.neg(x, out=out), 2 * row)

    return {
        "(negation of (T, D))": copy,
        "expand": expand,
        "embedding_layer_norm": embed,
        "residual_layer_norm": residual,
        "layer_norm": norm,
        "bias_activation": gelu,
        "linear_activation": linear,
        "packed_attention": packed,
        "cls_attention": cls,
        "first_token_pool": first,
        "mean_pool": mean,
    }


def rivals(lengths: list[int]) -> dict[str, Callable[[], Case]]:
    """The same attention by FlashAttention-2 over the packed row, and by PyTorch's padded ones."""
    tokens, longest = sum(lengths), max(lengths)
    bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device="cuda")
    row, pairs = tokens * HIDDEN * DTYPE.itemsize, sum(length**2 for length in lengths)

    def flash() -> Case:
        q, k, v = draw(tokens, 3, HEADS, HIDDEN // HEADS).unbind(1)
        arguments = (q, k, v, bounds, bounds, longest, longest, 0.0, False, False)
        run = lambda: torch.ops.aten._flash_attention_forward(*arguments)  # noqa: E731
        return Case(run, 4 * row, 4 * HIDDEN * pairs)

    def padded(backend: Any) -> Callable[[], Case]:
        def make() -> Case:
            shape = (len(lengths), longest, 3, HEADS, HIDDEN // HEADS)
            q, k, v = draw(*shape).permute(2, 0, 3, 1, 4).unbind(0)

            def run() -> None:
                with torch.nn.attention.sdpa_kernel(backend):
                    F.scaled_dot_product_attention(q, k, v)

            return Case(run, 4 * row, 4 * HIDDEN * pairs)

        return make

    found = {"flash_attention_2 varlen": flash}
    if min(lengths) == longest:
        backends = torch.nn.attention.SDPBackend
        found["sdpa flash, equal lengths"] = padded(backends.FLASH_ATTENTION)
        found["sdpa cudnn, equal lengths"] = padded(backends.CUDNN_ATTENTION)
    return found


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(DTYPE)


# How it is measured -------------------------------------------------------------------------


def microseconds(runs: list[Run], at_least: int = 20, best: bool = False) -> float:
    """The median (or best) time of one run, from replays of a graph that takes the runs in turn."""
    launches = [runs[i % len(runs)] for i in range(max(at_least, len(runs)))]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for run in runs[:2]:
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for run in launches:
            run()
    times = []
    for _ in range(9):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / len(launches))
    return min(times) if best else statistics.median(times[2:])


def measure(make: Callable[[], Case]) -> tuple[float, Case]:
    """Microseconds a run, on as many sets of buffers as overflow the L2 four times."""
    first = make()
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    sets = min(24, max(2, math.ceil(4 * cache / first.bytes)))
    return microseconds([first.run, *(make().run for _ in range(sets - 1))]), first


def peaks() -> dict[str, float]:
    """The best GB/s of a pass over 1 GiB, both directions, and TFLOP/s of an 8192^3 product.

    The pass is a kernel that negates: inside a graph, PyTorch's copy is left to
    the driver, which took 1.6 times as long on an H200.
    """
    source = torch.randn(2**29, device="cuda").half()
    target = torch.empty_like(source)
    a, b, c = draw(8192, 8192), draw(8192, 8192), draw(8192, 8192)
    for _ in range(50):  # an idle GPU wakes at a fifth of its clock
        torch.mm(a, b, out=c)
    copy = microseconds([lambda: torch.neg(source, out=target)], 10, best=True)
    product = microseconds([lambda: torch.mm(a, b, out=c)], 5, best=True)
    return {
        "copy_gb_s": 2 * source.nbytes / copy / 1e3,
        "matmul_tflop_s": 2 * 8192**3 / product / 1e6,
    }


def row(name: str, mix: str, tokens: int, us: float, case: Case, peak: dict[str, float]) -> dict:
    gb_s, tflop_s = case.bytes / us / 1e3, case.operations / us / 1e6
    return {
        "kernel": name,
        "lengths": mix,
        "tokens": tokens,
        "us": us,
        "gb_s": gb_s,
        "share_of_copy": gb_s / peak["copy_gb_s"],
        "tflop_s": tflop_s,
        "share_of_matmul": tflop_s / peak["matmul_tflop_s"],
    }


def mixes(tokens: int, file: Path | None) -> dict[str, list[int]]:
    return {"reviews": review_lengths(tokens, file), "512": [512] * (tokens // 512)}


LINE = (
    "{kernel:28} {lengths:8} {tokens:6} {us:8.1f} us {gb_s:7.0f} GB/s ({share_of_copy:4.0%}) "
    "{tflop_s:6.1f} TFLOP/s ({share_of_matmul:4.0%})"
)
DEPENDS_ON_LENGTHS = {"expand", "packed_attention", "cls_attention", "mean_pool"}


def table(peak: dict[str, float], file: Path | None) -> list[dict]:
    rows = []
    for tokens in TOKENS:
        for mix, lengths in mixes(tokens, file).items():
            for name, make in (cases(lengths) | rivals(lengths)).items():
                if mix == "reviews" or name in DEPENDS_ON_LENGTHS or name in rivals(lengths):
                    rows.append(row(name, mix, tokens, *measure(make), peak))
                    print(LINE.format(**rows[-1]), flush=True)
    return rows


# Matrix products ----------------------------------------------------------------------------


def products() -> list[dict]:
    """cuBLAS at bert-base, where T fills 132 multiprocessors evenly and where it does not."""
    shapes = {"qkv": (2304, 768), "out": (768, 768), "mlp in": (3072, 768), "mlp out": (768, 3072)}
    rows = []
    for tokens in (1024, 2048, 4096, 5632, 8192, 11264, 16384, 16896):
        rates = {}
        for name, (n, k) in shapes.items():
            us = microseconds([product(tokens, n, k) for _ in range(6)])
            rates[name] = 2 * tokens * n * k / us / 1e6
        rows.append({"tokens": tokens, "tflop_s": rates})
        print("products", tokens, {k: round(v) for k, v in rates.items()}, flush=True)
    return rows


def product(tokens: int, n: int, k: int) -> Run:
    x, weight, out = draw(tokens, k), draw(n, k), draw(tokens, n)
    return lambda: torch.mm(x, weight.t(), out=out)


def chunks(tokens: int = 16384) -> list[dict]:
    """The two wide products and the GELU between them, by chunks of tokens.

    A chunk whose intermediate (chunk x 3072) stays in L2 should make its passes
    cheaper; smaller products run at a lower rate.
    """
    xs = [draw(tokens, HIDDEN) for _ in range(4)]
    up, down = draw(WIDE, HIDDEN) * 0.02, draw(HIDDEN, WIDE) * 0.02
    bias, narrow = draw(WIDE), draw(HIDDEN)
    wide, out = draw(tokens, WIDE), draw(tokens, HIDDEN)

    def product(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, up.t(), out=h)

    def product_and_pass(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return mlp.bias_activation(product(x, h), bias, "gelu", out=h)

    def fused(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return mlp.linear_activation(x, up, bias, "gelu", out=h)

    def tanh(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return torch._addmm_activation(bias, x, up.t(), use_gelu=True)

    def run(first: Callable, x: torch.Tensor, chunk: int, second: bool) -> None:
        for i in range(0, tokens, chunk):
            part = x[i : i + chunk]
            # One buffer for all chunks: the same lines of L2 again.
            h = first(part, wide[: len(part)])
            if second:
                torch.addmm(narrow, h, down.t(), out=out[i : i + chunk])

    rows = []
    for chunk in (2048, 2816, 4096, 5632, 8192, 16384):
        found = {
            first.__name__ + (" + out" if second else ""): microseconds(
                [partial(run, first, x, chunk, second) for x in xs], 8
            )
            for second in (False, True)
            for first in (product, product_and_pass, fused, tanh)
        }
        rows.append({"chunk": chunk, "us": found})
        print("chunk", chunk, {k: round(v, 1) for k, v in found.items()}, flush=True)
    return rows


# Tile sizes ---------------------------------------------------------------------------------

AnyTile = Tile | AttentionTile | ProductTile | None

CANDIDATES: dict[str, list[AnyTile]] = {
    "packed_attention": [
        *(
            AttentionTile(64, 4, *open_loop, *edge_loop)
            for open_loop in ((64, 2), (64, 3), (32, 3))
            for edge_loop in ((16, 4), (32, 2), (32, 3), (32, 4), (64, 2))
        ),
        AttentionTile(128, 8, 64, 3, 32, 3),
        AttentionTile(128, 8, 64, 3, 64, 2),
        AttentionTile(32, 2, 32, 3, 32, 3),
        AttentionTile(32, 4, 32, 3, 32, 3),
    ],
    "linear_activation": [
        None,  # the library's product, and a pass
        ProductTile(128, 128, 64, 8, 3, 4),
        ProductTile(128, 128, 64, 8, 3, 8),
        ProductTile(128, 128, 64, 8, 3, 16),
        ProductTile(128, 128, 64, 8, 2, 8),
        ProductTile(128, 128, 32, 8, 4, 8),
        ProductTile(128, 128, 64, 4, 3, 8),
        ProductTile(128, 256, 64, 8, 3, 8),
        ProductTile(256, 128, 64, 8, 3, 8),
        ProductTile(128, 64, 64, 4, 3, 8),
        ProductTile(128, 64, 64, 4, 4, 8),
        ProductTile(64, 128, 64, 4, 3, 8),
        ProductTile(64, 128, 64, 4, 4, 8),
        ProductTile(64, 256, 64, 4, 2, 8),
        ProductTile(64, 64, 64, 4, 4, 8),
        ProductTile(64, 64, 128, 4, 3, 8),
    ],
    "cls_attention": [
        Tile(1, keys, warps, stages)
        for keys, warps in ((8, 1), (16, 1), (32, 1), (32, 2), (64, 2), (64, 4))
        for stages in (1, 2, 3)
    ],
    "residual_layer_norm": [
        Tile(rows, 1024, warps)
        for rows, warps in ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (4, 2), (4, 4), (4, 8),
                            (8, 4), (8, 8), (16, 8))
    ],
    "bias_activation": [
        Tile(rows, columns, warps)
        for rows, columns, warps in (
            (1, 1024, 1), (1, 1024, 2), (1, 1024, 4), (2, 1024, 2), (2, 1024, 4), (4, 1024, 4),
            (4, 1024, 8), (8, 1024, 8), (4, 512, 2), (4, 512, 4), (8, 512, 4), (16, 512, 8),
            (8, 256, 4), (16, 256, 4), (16, 128, 4),
        )
    ],
    "mean_pool": [
        Tile(tokens, columns, warps, stages)
        for tokens, columns, warps in ((8, 64, 1), (16, 64, 1), (16, 128, 1), (32, 64, 1),
                                       (32, 64, 2), (32, 128, 2), (64, 64, 4))
        for stages in (1, 2, 3)
    ],
}  # fmt: skip


@contextmanager
def pinned(name: str, tile: AnyTile) -> Iterator[None]:
    """The tables of ``tiles`` with one tile replaced."""
    attribute = {
        "packed_attention": "attention",
        "linear_activation": "linear_activation",
        "residual_layer_norm": "normalised_rows",
        "cls_attention": "CLS_ATTENTION",
        "bias_activation": "BIAS_ACTIVATION",
        "mean_pool": "MEAN_POOL",
    }[name]
    before = getattr(tiles, attribute)
    setattr(tiles, attribute, (lambda *_: tile) if callable(before) else tile)
    try:
        yield
    finally:
        setattr(tiles, attribute, before)


def setups(name: str, file: Path | None) -> dict[str, Callable[[], Callable[[], Case]]]:
    """Where a tile of this kernel is tried: a label, and what builds the case."""

    def case(tokens: int, mix: str, kernel: str = name, heads: int = HEADS) -> Callable[[], Case]:
        return cases(mixes(tokens, file)[mix], heads)[kernel]

    if name == "linear_activation":
        sizes = (256, 512, 1024, 2048, 4096, 8192, 16384)
        return {str(tokens): partial(case, tokens, "reviews") for tokens in sizes}
    found = {f"{tokens}": partial(case, tokens, "reviews") for tokens in (4096, 16384)}
    if name == "residual_layer_norm":
        for also in ("embedding_layer_norm", "layer_norm"):
            found[f"{also} 16384"] = partial(case, 16384, "reviews", also)
    if name in DEPENDS_ON_LENGTHS:
        found |= {f"{t} of 512": partial(case, t, "512") for t in (4096, 16384)}
    if name == "packed_attention":
        for heads in (24, 6):
            for mix in ("reviews", "512"):
                label = f"16384 {mix}, heads of {HIDDEN // heads}"
                found[label] = partial(case, 16384, mix, heads=heads)
    return found


def pairs_of(names: list[str]) -> Iterator[tuple[str, AnyTile, str]]:
    """Everything to be tried, as (kernel, tile, setup)."""
    for name in names or CANDIDATES:
        for label in setups(name, None):
            for tile in CANDIDATES[name]:
                yield name, tile, label


def compile_ahead(name: str, tile: AnyTile, label: str) -> None:
    """One launch in a process of its own, which leaves the machine code in Triton's cache."""
    with pinned(name, tile):
        try:
            setups(name, None)[label]()().run()
        except triton.runtime.errors.OutOfResources:
            return
    torch.cuda.synchronize()


def sweep(names: list[str], file: Path | None, workers: int) -> list[dict]:
    tried = list(pairs_of(names))
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_ahead, *zip(*tried, strict=True), chunksize=4))
    rows = []
    for name, tile, label in tried:
        with pinned(name, tile):
            try:
                us, _ = measure(setups(name, file)[label]())
            except triton.runtime.errors.OutOfResources:
                continue
        sizes = None if tile is None else asdict(tile)
        rows.append({"kernel": name, "setup": label, "tile": sizes, "us": us})
    rows.sort(key=lambda r: (r["kernel"], r["setup"], r["us"]))
    for _, group in groupby(rows, key=lambda r: (r["kernel"], r["setup"])):
        for r in islice(group, 6):
            sizes = "library" if r["tile"] is None else tuple(r["tile"].values())
            print(f"{r['kernel']:20} {r['setup']:32} {r['us']:8.1f} us {sizes}")
    return rows


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write everything measured")
    parser.add_argument("--lengths", type=Path, help="token counts of texts, one a line")
    parser.add_argument("--sweep", nargs="*", metavar="KERNEL", help="try tile sizes")
    parser.add_argument("--products", action="store_true", help="time the matrix products")
    parser.add_argument("--workers", type=int, default=12, help="processes that compile")
    options = parser.parse_args(arguments)

    peak = peaks()
    result: dict[str, Any] = {
        "machine": {
            "gpu": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
        },
        "peaks": peak,
    }
    print(result, flush=True)
    result["rows"] = table(peak, options.lengths)
    if options.products:
        result["products"], result["chunks"] = products(), chunks()
    if options.sweep is not None:
        result["sweep"] = sweep(options.sweep, options.lengths, options.workers)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
