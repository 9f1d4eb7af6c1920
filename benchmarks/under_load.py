"""A CPU server that is asked for too much: a real model, overload and an unfair client.

    python benchmarks/under_load.py --json benchmarks/results/under-load-cpu-bert-base.json
    python benchmarks/under_load.py --model tiny --seconds 4

The shape of bert-base with random weights, load generator and server on the same
cores. First what the server does at most (a closed loop of 64 clients), then ten
times that in an open loop, each request with a deadline, and then what it does at
most once more: the capacity is the mean of both. After that one client with single
texts, alone and beside another that sends a list of ten thousand. Exit code 1 if
something does not hold that is promised: see ``promises``.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from packhorse.hardware import detect
from packhorse.tools.bench import machine
from packhorse.tools.bench.random_checkpoint import model_folder
from packhorse.tools.bench.serve.bodies import read_texts
from packhorse.tools.bench.serve.command import measure
from packhorse.tools.bench.serve.plan import Plan
from packhorse.tools.bench.serve.served import Served, served
from packhorse.tools.bench.serve.target import target_of

FORMAT = 1
DEADLINE = 2.0
TIMES = 10
LIST = 10_000
REST_SECONDS = 2.0
"""After the overload, before the server must be as it was."""


def main() -> int:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or the server would be left behind
    with tempfile.TemporaryDirectory(prefix="packhorse-load-") as scratch:
        folder, weights = model_folder(given.model, Path(scratch))
        flags = ["--without", "dedup", "--model-id", str(folder), "--device", "cpu"]
        flags += ["--threads", str(given.threads)]
        with served(flags) as server:
            result = {
                "format": FORMAT,
                "overload": overload(server, given.seconds),
                "fairness": fairness(server, given.seconds),
            }
    result |= {
        "promises": promises(result),
        "model": {"name": given.model, "weights": weights},
        "machine": machine.description(given.threads),
        "versions": machine.versions(),
        "commit": machine.commit(),
        "command": " ".join(["python", *sys.argv]),
    }
    for promise, holds in result["promises"].items():
        print(f"{'holds' if holds else 'DOES NOT HOLD':14} {promise}")
    if given.json is not None:
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 0 if all(result["promises"].values()) else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="bert-base", help="a shape or a folder")
    parser.add_argument("--threads", type=int, default=detect().cpus)
    parser.add_argument("--seconds", type=float, default=60.0, help="of overload")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def overload(server: Served, seconds: float) -> dict[str, Any]:
    """Ten times the capacity, and what a request takes before and after."""
    measure(plan(server, 8, seconds / 12))  # it learns how fast it is
    before = Single(server.url)
    before.ask_for(5.0)
    capacities = [capacity_of(server, seconds)]
    capacity = capacities[0]
    resident = [server.resident_bytes()]
    with Probe(server) as probe:
        report = measure(plan(server, 1024, seconds, TIMES * capacity, DEADLINE), DEADLINE, server)
    time.sleep(REST_SECONDS)
    after = Single(server.url)
    after.ask_for(5.0)
    capacities.append(capacity_of(server, seconds))
    return {
        "capacity": sum(capacities) / 2,
        "capacities": capacities,
        "load": report,
        "before_ms": quantiles(before.took),
        "after_ms": quantiles(after.took),
        "refused_without_retry_after": probe.without_retry_after,
        "refused": probe.refused,
        "resident_bytes": resident + probe.resident,
    }


def capacity_of(server: Served, seconds: float) -> float:
    """Requests a second of 64 clients; before and after, as a machine is faster now and slower
    then. A batch has up to half of them, so one more or less in 15 seconds were a tenth."""
    report = measure(plan(server, 64, seconds / 2), server=server)
    return float(report["requests_per_second"])


def fairness(server: Served, seconds: float) -> dict[str, Any]:
    """Single texts of one client, alone and beside another's long list."""
    alone, beside = Single(server.url, "127.0.0.2"), Single(server.url, "127.0.0.2")
    alone.ask_for(seconds / 2)
    with long_list(server):
        time.sleep(1.0)
        beside.ask_for(seconds)
    return {
        "alone_ms": quantiles(alone.took),
        "beside_ms": quantiles(beside.took),
        "batch_ms": longest_batch(server),
    }


def promises(result: dict[str, Any]) -> dict[str, bool]:
    """What the server stands for, and whether it holds in this run."""
    over, fair = result["overload"], result["fairness"]
    load, resident = over["load"], over["resident_bytes"]
    return {
        "goodput is 90% of the capacity": load["goodput_per_second"] >= 0.9 * over["capacity"],
        "p99 of answers within the deadline": load["latency_ms"]["p99"] <= DEADLINE * 1000,
        "the rest is refused or past its deadline": not load["errors"]
        and set(load["by_status"]) <= {"200", "429", "504"},
        "every refusal says when to come back": over["refused"] > 0
        and over["refused_without_retry_after"] == 0,
        "memory stays within a fifth": max(resident) <= 1.2 * resident[0],
        "two seconds later it is as before": over["after_ms"]["p50"]
        <= 1.5 * over["before_ms"]["p50"],
        "a long list delays others by a batch": fair["beside_ms"]["p99"]
        <= 3 * fair["alone_ms"]["p99"] + fair["batch_ms"],
    }


def plan(
    server: Served,
    connections: int,
    seconds: float,
    rate: float | None = None,
    deadline: float | None = None,
) -> Plan:
    headers = () if deadline is None else (("x-timeout-ms", f"{deadline * 1000:.0f}"),)
    return Plan(
        target=target_of(server.url),
        route="/predict",
        headers=headers,
        texts=read_texts(None),
        bodies=(),
        batches=(1,),
        distinct=10_000,
        connections=connections,
        rate=rate,
        processes=1,
        warm_up=min(3.0, seconds / 2),
        duration=seconds,
        timeout=60.0,
    )


class Single:
    """A client with one text a request, one after the other."""

    def __init__(self, url: str, address: str = "127.0.0.1") -> None:
        self.took: list[float] = []
        self._port = urlsplit(url).port
        self._address = address

    def ask_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        connection = HTTPConnection("127.0.0.1", self._port, 60, source_address=(self._address, 0))
        for text in read_texts(None):
            body = json.dumps({"inputs": text})
            begun = time.monotonic()
            if begun >= end:
                break
            connection.request("POST", "/predict", body)
            with connection.getresponse() as answer:
                answer.read()
                assert answer.status == 200, answer.status
            self.took.append(time.monotonic() - begun)
        connection.close()


class Probe(threading.Thread):
    """Looks at refusals and at memory while the load is on, twice a second."""

    def __init__(self, server: Served) -> None:
        super().__init__()
        self.refused = self.without_retry_after = 0
        self.resident: list[int] = []
        self._server = server
        self._ending = threading.Event()

    def run(self) -> None:
        connection = HTTPConnection("127.0.0.1", urlsplit(self._server.url).port, 60)
        while not self._ending.wait(0.5):
            self.resident.append(self._server.resident_bytes())
            connection.request("POST", "/predict", '{"inputs":"a text"}', {"x-timeout-ms": "2000"})
            with connection.getresponse() as answer:
                answer.read()
                if answer.status == 429:
                    self.refused += 1
                    self.without_retry_after += "retry-after" not in answer.headers
        connection.close()

    def __enter__(self) -> Probe:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self.join()


@contextmanager
def long_list(server: Served) -> Iterator[None]:
    """Another client's list of ten thousand is being answered; it hangs up at the end."""
    texts = read_texts(None)
    inputs = [[texts[place % len(texts)]] for place in range(LIST)]
    connection = HTTPConnection(
        "127.0.0.1", urlsplit(server.url).port, 600, source_address=("127.0.0.3", 0)
    )
    connection.request("POST", "/predict", json.dumps({"inputs": inputs}))
    try:
        yield
    finally:
        connection.close()


def longest_batch(server: Served) -> float:
    """What a batch may take by prediction, in ms: the list's do, as it can wait for nobody."""
    with urllib.request.urlopen(server.url + "/info", timeout=60) as answer:
        info = json.loads(answer.read())
    return float(info["engine"]["most_batch_time"])


def quantiles(seconds: list[float]) -> dict[str, float]:
    return {
        "count": len(seconds),
        "p50": 1000 * float(np.quantile(seconds, 0.5, method="higher")),
        "p99": 1000 * float(np.quantile(seconds, 0.99, method="higher")),
    }


if __name__ == "__main__":
    raise SystemExit(main())
