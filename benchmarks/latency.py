"""What one small batch waits for on the GPU, and which change makes it how much shorter.

    python benchmarks/latency.py                       the table
    python benchmarks/latency.py --json latency.json   and everything measured
    python benchmarks/latency.py --sweep               tiles of few rows, for kernels/tiles.py

The whole forward pass of a model of bert-base's shape (random weights, twelve
layers, the last for the first token only, a head of two layers) as one CUDA
graph, for one sequence of T tokens. The changes are switched on one after the
other: each row of the table has all of the rows above it. Every row is checked:
its logits against the twins in float32, and that 200 replays agree to the bit.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from torch import Tensor

from packhorse.kernels import (
    attention,
    embedding,
    few_rows,
    head,
    layout,
    mlp,
    pooling,
    reference,
    tiles,
)
from packhorse.kernels.tiles import AttentionTile, FewRowsTile, Tile

HIDDEN, HEADS, WIDE, LAYERS, LABELS, EPS = 768, 12, 3072, 12, 2, 1e-12
TOKENS = (16, 48, 128, 256)
FUSED = SimpleNamespace(
    expand=layout.expand,
    embedding_layer_norm=embedding.embedding_layer_norm,
    linear=few_rows.linear,
    linear_activation=mlp.linear_activation,
    linear_residual_norm=few_rows.linear_residual_norm,
    packed_attention=attention.packed_attention,
    cls_attention=attention.cls_attention,
    first_token_pool=pooling.first_token_pool,
    head_layer=head.head_layer,
)


@dataclass(frozen=True)
class Setting:
    """Which changes are on: the uses of few-row products, and the rest by name."""

    few_rows: frozenset[str] = frozenset()
    fewer_launches: bool = False
    overlap: bool = False
    prefetch: bool = False


def ladder() -> dict[str, Setting]:
    """Each change on top of the ones before."""
    steps: dict[str, dict[str, Any]] = {
        "library products": {},
        "linear_residual_norm": {"few_rows": frozenset({"norm"})},
        "linear": {"few_rows": frozenset({"norm", "linear"})},
        "linear_activation": {"few_rows": frozenset({"norm", "linear", "activation"})},
        "expand with types, head_layer": {"fewer_launches": True},
        "overlapped launches": {"overlap": True},
        "prefetched weights": {"prefetch": True},
    }
    found, setting = {}, Setting()
    for name, change in steps.items():
        setting = replace(setting, **change)
        found[name] = setting
    found["overlap alone"] = Setting(overlap=True, fewer_launches=True)
    return found


@contextmanager
def patched(**values: Any) -> Iterator[None]:
    """Attributes of ``tiles``, replaced for a while."""
    before = {name: getattr(tiles, name) for name in values}
    for name, value in values.items():
        setattr(tiles, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(tiles, name, value)


@contextmanager
def switched(setting: Setting) -> Iterator[None]:
    choose, overlaps = tiles.few_rows, tiles.overlaps

    def chosen(use: str, *shape: Any) -> FewRowsTile | None:
        return choose(use, *shape) if use in setting.few_rows else None

    with patched(
        few_rows=chosen,
        overlaps=lambda device: setting.overlap and overlaps(device),
        PREFETCH=setting.prefetch,
    ):
        yield


class Model:
    """Random weights of bert-base's shape, and the forward pass over any set of operations."""

    def __init__(self, layers: int, dtype: torch.dtype = torch.float16) -> None:
        torch.manual_seed(0)

        def matrix(rows: int, columns: int) -> Tensor:
            return (torch.randn(rows, columns, device="cuda") / columns**0.5).to(dtype)

        def vector(size: int, mean: float = 0.0) -> Tensor:
            return (mean + 0.1 * torch.randn(size, device="cuda")).to(dtype)

        def norm() -> tuple[Tensor, Tensor, float]:
            return vector(HIDDEN, 1.0), vector(HIDDEN), EPS

        self.tables = matrix(30522, HIDDEN), matrix(512, HIDDEN), matrix(2, HIDDEN)
        self.norm = norm()
        self.layers = [
            (
                (matrix(3 * HIDDEN, HIDDEN), vector(3 * HIDDEN)),
                (matrix(HIDDEN, HIDDEN), vector(HIDDEN)),
                norm(),
                (matrix(WIDE, HIDDEN), vector(WIDE)),
                (matrix(HIDDEN, WIDE), vector(HIDDEN)),
                norm(),
            )
            for _ in range(layers)
        ]
        self.head = [
            (matrix(HIDDEN, HIDDEN).float(), vector(HIDDEN).float(), "tanh"),
            (matrix(LABELS, HIDDEN).float(), vector(LABELS).float(), None),
        ]

    def widened(self) -> Model:
        """The same weights in float32."""

        def widen(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.float()
            return type(value)(map(widen, value)) if isinstance(value, tuple | list) else value

        model = Model.__new__(Model)
        for name, value in vars(self).items():
            setattr(model, name, widen(value))
        return model

    def forward(self, ops: Any, inputs: Inputs, fewer_launches: bool) -> Tensor:
        """Logits (1, labels), written into ``inputs.logits``."""
        tokens = len(inputs.ids)
        bounds = inputs.bounds, inputs.count
        positions, starts, ends, kinds = ops.expand(*bounds, tokens, segment_starts=inputs.segments)
        x = ops.embedding_layer_norm(inputs.ids, positions, kinds, *self.tables, *self.norm)
        for qkv, *rest in self.layers[:-1]:
            y = ops.packed_attention(ops.linear(x, *qkv), starts, ends, HEADS)
            x = self._after_attention(ops, x, y, rest)
        (weight, bias), *rest = self.layers[-1]
        key_value = ops.linear(x, weight[HIDDEN:], bias[HIDDEN:])
        first = ops.first_token_pool(x, inputs.bounds)
        query = ops.linear(first, weight[:HIDDEN], bias[:HIDDEN])
        y = ops.cls_attention(query, key_value, inputs.bounds, HEADS)
        return self._logits(self._after_attention(ops, first, y, rest), inputs, ops, fewer_launches)

    def _after_attention(self, ops: Any, x: Tensor, y: Tensor, rest: list[Any]) -> Tensor:
        out, out_norm, up, down, norm = rest
        h = ops.linear_residual_norm(y, *out, x, *out_norm)
        inner = ops.linear_activation(h, *up, "gelu")
        return ops.linear_residual_norm(inner, *down, h, *norm)

    def _logits(self, x: Tensor, inputs: Inputs, ops: Any, fewer_launches: bool) -> Tensor:
        if not fewer_launches:
            x = x.float()
            for layer in self.head:
                x = reference.head_layer(x, *layer)
            return inputs.logits.copy_(x)
        for layer in self.head[:-1]:
            x = ops.head_layer(x, *layer)
        return ops.head_layer(x, *self.head[-1], out=inputs.logits)


@dataclass(frozen=True)
class Inputs:
    ids: Tensor
    bounds: Tensor
    count: Tensor
    segments: Tensor
    logits: Tensor

    @classmethod
    def of(cls, tokens: int) -> Inputs:
        """One sequence that leaves a few tokens of the bucket unused."""
        length = max(1, tokens - 5)

        def ints(*values: int) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device="cuda")

        return cls(
            torch.randint(30522, (tokens,), device="cuda").int(),
            ints(0, length),
            ints(1),
            ints(length // 2),
            torch.full((1, LABELS), torch.nan, device="cuda"),
        )


def captured(run: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    return graph


def microseconds(graph: torch.cuda.CUDAGraph, times: int = 60) -> float:
    """The median of single replays."""
    found = []
    for _ in range(times):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) * 1000)
    return statistics.median(found[5:])


def table(model: Model, tokens: Iterable[int]) -> list[dict]:
    rows = []
    wide = model.widened()
    for count in tokens:
        inputs = Inputs.of(count)
        wanted = wide.forward(reference, inputs, True).clone()
        for name, setting in ladder().items():
            with switched(setting):
                graph = captured(lambda s=setting: model.forward(FUSED, inputs, s.fewer_launches))  # noqa: B023
            us = microseconds(graph)
            inputs.logits.fill_(torch.nan)
            graph.replay()
            first = inputs.logits.clone()
            differing = torch.zeros((), device="cuda")
            for _ in range(200):
                inputs.logits.fill_(torch.nan)
                graph.replay()
                differing += (inputs.logits != first).any()
            error = float((first - wanted).abs().max())
            rows.append(
                {"tokens": count, "change": name, "us": us, "error": error,
                 "differing_replays": int(differing)}
            )  # fmt: skip
            print("T {tokens:4}  {change:32} {us:7.1f} us  error {error:.1e}  "
                  "{differing_replays} replays differ".format(**rows[-1]), flush=True)  # fmt: skip
    return rows


# Tiles --------------------------------------------------------------------------------------

Place = tuple[Any, ...]
"""A use, width and inner dimension of a few-row product; or another table of ``tiles``."""

NOISE = 1.0
"""Microseconds by which two measurements of the same differ."""


def candidates(tokens: int) -> dict[Place, list[Any]]:
    own = min(64, max(16, triton.next_power_of_2(tokens)))
    heights = [64, 128] if tokens > 64 else sorted({own, 64})
    whole = [
        FewRowsTile(height, columns, depth, 1, warps, stages)
        for height in heights
        for columns, depth, warps, stages in (
            *((16, 128, 4, 6), (16, 256, 4, 3), (32, 128, 4, 4), (32, 128, 4, 6), (32, 128, 8, 4)),
            *((32, 256, 4, 3), (64, 128, 4, 4), (64, 128, 4, 6), (64, 128, 8, 4), (64, 256, 4, 3)),
            *((128, 128, 4, 4), (128, 64, 8, 4), (128, 128, 8, 4)),
        )
    ]
    short = [
        FewRowsTile(height, columns, depth, parts, 4, stages)
        for height in heights
        for columns, depth, parts, stages in (
            *((16, 128, 2, 4), (16, 128, 3, 3), (16, 256, 3, 2), (32, 128, 2, 4), (32, 128, 3, 3)),
            *((32, 128, 6, 2), (32, 256, 3, 2), (64, 128, 2, 4), (64, 128, 3, 3), (64, 128, 6, 2)),
            (64, 256, 3, 2),
        )
    ]
    long = [
        FewRowsTile(height, columns, depth, parts, 4, stages)
        for height in heights
        for columns, depth, parts, stages in (
            *((32, 128, 4, 4), (32, 128, 4, 6), (32, 128, 6, 4), (32, 128, 8, 4), (32, 256, 4, 3)),
            *((32, 256, 6, 2), (64, 128, 4, 6), (64, 128, 6, 4), (64, 128, 8, 3), (64, 128, 8, 4)),
            *((64, 128, 12, 3), (64, 256, 4, 3), (64, 256, 6, 3), (128, 128, 8, 4)),
        )
    ]
    return {
        ("linear", 3 * HIDDEN, HIDDEN): whole,
        ("activation", WIDE, HIDDEN): whole,
        ("norm", HIDDEN, WIDE): long,
        ("norm", HIDDEN, HIDDEN): short,
        ("attention",): [
            *(AttentionTile(64, 4, 64, 3, 32, 3), AttentionTile(64, 4, 64, 2, 64, 2)),
            *(AttentionTile(32, 4, 64, 2, 64, 2), AttentionTile(32, 2, 64, 2, 64, 2)),
            *(AttentionTile(16, 4, 64, 2, 64, 2), AttentionTile(16, 2, 64, 2, 64, 2)),
        ],
        ("ADD_RESIDUAL_NORM_WARPS",): [4, 8, 16],
        ("HEAD",): [Tile(8, 256, 4), Tile(8, 512, 4), Tile(16, 256, 8), Tile(4, 256, 4)],
    }


@contextmanager
def pinned(chosen: Mapping[Place, Any]) -> Iterator[None]:
    """Entries of ``tiles`` replaced; of few-row products only where there is more than a row."""
    choose = tiles.few_rows

    def of_few_rows(use: str, dtype: torch.dtype, rows: int, *shape: int) -> FewRowsTile | None:
        if rows > 1 and (use, *shape[:2]) in chosen:
            return chosen[use, *shape[:2]]
        return choose(use, dtype, rows, *shape)

    values: dict[str, Any] = {"few_rows": of_few_rows}
    for (name, *shape), tile in chosen.items():
        if not shape:
            values[name] = (lambda *_, tile=tile: tile) if name == "attention" else tile
    with patched(**values):
        yield


def forward_once(tokens: int, setting: Setting, chosen: Mapping[Place, Any]) -> None:
    """Two layers, in a process of its own: leaves the machine code in Triton's cache."""
    with switched(setting), pinned(chosen):
        try:
            Model(2).forward(FUSED, Inputs.of(tokens), setting.fewer_launches)
        except triton.runtime.errors.OutOfResources:
            return
    torch.cuda.synchronize()


def compile_ahead(work: list[tuple[int, Setting, Mapping[Place, Any]]], workers: int) -> None:
    # Forked before this process touches the GPU: nothing is imported again.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
        list(pool.map(forward_once, *zip(*work, strict=True)))


FULL = ladder()["prefetched weights"]
TURNS = 2


def sweep(model: Model, tokens: int) -> dict[str, Any]:
    """From the tiles that are shipped on, place after place: the best stays, and then once more.

    What is best for one kernel depends on those beside it, with which it overlaps.
    """
    inputs = Inputs.of(tokens)

    def measured(chosen: Mapping[Place, Any], times: int = 60) -> float:
        with switched(FULL), pinned(chosen):
            try:
                graph = captured(lambda: model.forward(FUSED, inputs, True))
            except triton.runtime.errors.OutOfResources:
                return math.inf
        return min(microseconds(graph, times) for _ in range(2))

    chosen: dict[Place, Any] = {}
    begun = best = measured(chosen, 150)
    for _ in range(TURNS):
        for place, tried in candidates(tokens).items():
            found = sorted(
                ((measured(chosen | {place: tile}), number) for number, tile in enumerate(tried))
            )[:3]
            us, number = min((measured(chosen | {place: tried[n]}, 150), n) for _, n in found)
            if us < best - NOISE:
                chosen[place], best = tried[number], us
            print(f"T {tokens}  {place!s:28} {best:7.1f} us  {chosen.get(place, 'as shipped')}")
    tiles_found = {
        str(place): tile if isinstance(tile, int) else asdict(tile)
        for place, tile in chosen.items()
    }
    return {"tokens": tokens, "shipped_us": begun, "us": best, "better": tiles_found}


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write everything measured")
    parser.add_argument("--tokens", type=int, nargs="*", default=TOKENS)
    parser.add_argument("--sweep", type=int, nargs="*", metavar="T", help="try tiles at T tokens")
    parser.add_argument("--workers", type=int, default=12, help="processes that compile")
    options = parser.parse_args(arguments)

    swept: list[int] = options.sweep or ([48] if options.sweep == [] else [])
    work: list[tuple[int, Setting, Mapping[Place, Any]]] = [
        (tokens, setting, {}) for tokens in options.tokens for setting in ladder().values()
    ]
    for tokens in swept:
        for place, tried in candidates(tokens).items():
            work += [(tokens, FULL, {place: tile}) for tile in tried]
    compile_ahead(work, options.workers)

    result: dict[str, Any] = {
        "machine": {
            "gpu": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
        }
    }
    print(result, flush=True)
    with torch.inference_mode():
        model = Model(LAYERS)
        result["rows"] = table(model, options.tokens)
        result["sweep"] = [sweep(model, tokens) for tokens in swept]
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
