"""A server under load on one GPU, with the load generator on the same cores.

    python benchmarks/serve_h200.py --json serve.json
    python benchmarks/serve_h200.py --model tiny --device cpu --front-ends 1 --seconds 1

A checkpoint of bert-base's shape with random weights, 10,000 distinct bodies,
nothing answered from a cache or computed once for two. For each number of front
ends a server is started, and three loads are put on it, all closed loops:

    one       one review a request, many connections: requests a second
    batches   32 texts of exactly 50 tokens a request: tokens a second
    alone     one review a request, one connection: its latency

The best of each over the numbers of front ends is what is reported; every
single run is in the JSON file, with what the server itself counted beside it.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from packhorse.checkpoint import load_checkpoint
from packhorse.errors import ConfigError
from packhorse.hardware import detect
from packhorse.tokenizing.tokenizer import Tokenizer
from packhorse.tools.bench import machine
from packhorse.tools.bench.random_checkpoint import model_folder
from packhorse.tools.bench.serve.bodies import read_texts
from packhorse.tools.bench.serve.command import measure
from packhorse.tools.bench.serve.plan import Plan
from packhorse.tools.bench.serve.served import Served, served
from packhorse.tools.bench.serve.summary import summary
from packhorse.tools.bench.serve.target import target_of

FORMAT = 1
TOKENS, BATCH, DISTINCT = 50, 32, 10_000
NO_SHORTCUTS = ("--without", "dedup", "--response-cache-mb", "0")
"""Every text is computed, also one that was asked before."""


def main() -> int:
    given = arguments()
    began = perf_counter()
    with tempfile.TemporaryDirectory(prefix="packhorse-serve-") as scratch:
        folder, weights = model_folder(given.model, Path(scratch))
        reviews = read_texts(None)
        texts = {"one": reviews, "batches": texts_of(TOKENS, folder, reviews), "alone": reviews}
        runs = [
            run
            for front_ends in given.front_ends
            for run in runs_of(folder, front_ends, texts, given)
        ]
    result = {
        "format": FORMAT,
        "best": best_of(runs),
        "model": {"name": given.model, "weights": weights},
        "machine": machine.description(detect().cpus),
        "versions": machine.versions(),
        "commit": machine.commit() or given.commit,
        "seconds": perf_counter() - began,
        "runs": runs,
    }
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["best"], indent=1))
    print(json.dumps(result))
    return 1 if any(run["errors"] or not run["counts_agree"] for run in runs) else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="bert-base", help="a shape or a folder")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--front-ends", type=numbers, default=[4, 6, 8], help="4,6,8")
    parser.add_argument("--processes", type=int, default=4, help="of the load generator")
    parser.add_argument("--connections", type=int, default=512)
    parser.add_argument("--batch-connections", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument(
        "--without", action="append", default=[], metavar="NAME", help="an optimisation, to compare"
    )
    parser.add_argument(
        "--loads", type=lambda text: text.split(","), default=["one", "batches", "alone"]
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--commit", help="what to record where the sources are no git checkout")
    return parser.parse_args()


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def runs_of(
    folder: Path, front_ends: int, texts: dict[str, Sequence[str]], given: argparse.Namespace
) -> list[dict[str, Any]]:
    """Every load on one server."""
    flags = ["--model-id", str(folder), "--device", given.device, "--front-ends", str(front_ends)]
    flags += NO_SHORTCUTS
    flags += [word for name in given.without for word in ("--without", name)]
    began, runs = perf_counter(), []
    with served(flags) as server:
        ready = perf_counter() - began
        with urllib.request.urlopen(f"{server.url}/info") as answer:
            info = json.load(answer)
        for load in given.loads:
            report = run_one(server, load, texts[load], given)
            per_text = engine_microseconds(report)
            runs.append(
                {
                    "load": load,
                    "front_ends": front_ends,
                    "without": given.without,
                    "ready_seconds": ready,
                    "engine_cpu_us_per_text": per_text,
                    **report,
                    "info": info,
                }
            )
            print(f"\n{load}, {front_ends} front ends, engine {per_text:.1f} us CPU a text")
            print(summary(report), flush=True)
    return runs


def run_one(
    server: Served, load: str, texts: Sequence[str], given: argparse.Namespace
) -> dict[str, Any]:
    connections = {
        "one": given.connections,
        "batches": given.batch_connections,
        "alone": 1,
    }[load]
    plan = Plan(
        target=target_of(server.url),
        route="/predict",
        headers=(),
        texts=tuple(texts),
        bodies=(),
        batches=(BATCH,) if load == "batches" else (1,),
        distinct=DISTINCT,
        connections=connections,
        rate=None,
        processes=min(connections, given.processes),
        warm_up=1.0,
        duration=given.seconds,
        timeout=30.0,
    )
    before = answered(server)
    report = measure(plan, server=server)
    counted = answered(server) - before
    return report | {"counts_agree": counted == report["totals"]["by_status"].get("200", 0)}


def answered(server: Served) -> int:
    """Requests to /predict that the server says it has answered with 200."""
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    series = ("packhorse_requests_total{", 'route="predict"', 'status="200"')
    return sum(
        int(float(line.rpartition(" ")[2]))
        for line in lines
        if all(part in line for part in series)
    )


def engine_microseconds(report: dict[str, Any]) -> float:
    """CPU time of the engine's process for each text: its Python, and the driver's launches."""
    texts = report["texts_per_second"] * report["duration_seconds"]
    return float(report["server"]["cpu_seconds"]["engine"]) / max(1.0, texts) * 1e6


def texts_of(tokens: int, folder: Path, reviews: Sequence[str]) -> list[str]:
    """Texts of exactly so many tokens, special ones included: words of reviews in a row.

    A BERT tokenizer splits at spaces first, so a text has the tokens of its words.
    """
    tokenizer = Tokenizer.load(load_checkpoint(folder))
    words = [word for review in reviews for word in review.split()]
    random.Random(0).shuffle(words)
    names = sorted(set(words))
    sizes = dict(zip(names, (tokenizer.encode(names).lengths - 2).tolist(), strict=True))
    texts, text, left = [], [], tokens - 2
    for word in words:
        if 0 < sizes[word] <= left:
            text.append(word)
            left -= sizes[word]
        if not left:
            texts.append(" ".join(text))
            text, left = [], tokens - 2
    found = set(tokenizer.encode(texts).lengths.tolist())
    if found != {tokens}:
        raise ConfigError(f"this tokenizer does not split at spaces: texts have {found} tokens")
    return texts


def best_of(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures that are claimed, each with the number of front ends that gave it."""
    best = {}
    if runs_one := of(runs, "one"):
        one = max(runs_one, key=lambda run: run["requests_per_second"])
        best["one"] = figures(
            one, "requests_per_second", "connections", "engine_cpu_us_per_text"
        ) | {"p99_ms": one["latency_ms"]["p99"]}
    if runs_batches := of(runs, "batches"):
        batches = max(runs_batches, key=lambda run: run["tokens_per_second"] or 0.0)
        best["batches"] = figures(
            batches, "tokens_per_second", "texts_per_second", "engine_cpu_us_per_text"
        )
    if runs_alone := of(runs, "alone"):
        alone = min(runs_alone, key=lambda run: run["latency_ms"]["p50"])
        best["alone"] = figures(alone) | {"p50_ms": alone["latency_ms"]["p50"]}
    return best


def of(runs: list[dict[str, Any]], load: str) -> list[dict[str, Any]]:
    return [run for run in runs if run["load"] == load]


def figures(run: dict[str, Any], *names: str) -> dict[str, Any]:
    chosen = {name: run[name] for name in ("front_ends", "errors", *names)}
    return chosen | {"generator_is_bottleneck": run["generator"]["is_bottleneck"]}


if __name__ == "__main__":
    raise SystemExit(main())
