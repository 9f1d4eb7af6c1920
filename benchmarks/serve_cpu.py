"""Packhorse beside other services on a CPU, with the load generator on the same cores.

    python benchmarks/serve_cpu.py --rivals-venv FOLDER --json serve.json
    python benchmarks/serve_cpu.py --model tiny --rounds 1 --seconds 2

MiniLM-L6's shape with random weights, 64 clients with one review a request in a
closed loop. Every service is a process of its own, and all are alive at once;
in each round each takes the load once, in an order drawn anew, so that what
drifts on the machine drifts for all. Ratios are taken within a round, and their
median counts. What is not installed is named as skipped.

FOLDER is a virtual environment with fastapi, mosec, litserve, torch and
transformers, whichever are to be compared; without it this interpreter's. The
option can be given again: Infinity needs an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packhorse.errors import ConfigError
from packhorse.hardware import detect
from packhorse.tools.bench import machine, machine_load
from packhorse.tools.bench.random_checkpoint import model_folder
from packhorse.tools.bench.serve.bodies import ROUTES, read_texts
from packhorse.tools.bench.serve.command import measure
from packhorse.tools.bench.serve.plan import Plan
from packhorse.tools.bench.serve.served import served
from packhorse.tools.bench.serve.target import target_of

FORMAT = 1
FOLDER = Path(__file__).parent / "rivals"
START_SECONDS = 300


@dataclass(frozen=True)
class Rival:
    """A script of benchmarks/rivals, the library that it needs, and its route."""

    script: str
    library: str
    route: str


RIVALS = {
    "fastapi-naive": Rival("fastapi_naive.py", "fastapi", "/predict"),
    "fastapi-batching": Rival("fastapi_batching.py", "fastapi", "/predict"),
    "mosec": Rival("mosec_batching.py", "mosec", "/inference"),
    "litserve": Rival("litserve_batching.py", "litserve", "/predict"),
    "infinity": Rival("infinity_classify.py", "infinity_emb", "/classify"),
}
OURS = "packhorse"


@dataclass(frozen=True)
class Service:
    """One that answers."""

    url: str
    route: str
    versions: dict[str, Any]


def main() -> int:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or the services would be left behind
    pythons = [f"{folder}/bin/python" for folder in given.rivals_venv] or [sys.executable]
    found, skipped = installed(pythons)
    for name, why in skipped.items():
        print(f"skipped   {name}: {why}", flush=True)
    with tempfile.TemporaryDirectory(prefix="packhorse-serve-") as scratch, ExitStack() as stack:
        folder, weights = model_folder(given.model, Path(scratch))
        started = {  # all at once: to import torch takes long
            name: stack.enter_context(
                started_rival(RIVALS[name], python, folder, given.threads, Path(scratch))
            )
            for name, python in found.items()
        }
        services = {OURS: stack.enter_context(ours(folder, given.threads))}
        for name, rival in started.items():
            try:
                services[name] = rival.service()
            except ConfigError as error:
                skipped[name] = str(error)
                print(f"skipped   {name}: {error}", flush=True)
        rounds = [one_round(services, number, given) for number in range(given.rounds)]
    table = {name: row(name, rounds) for name in services}
    result = {
        "format": FORMAT,
        "services": table,
        "versus_best_rival": versus_best(table, rounds),
        "skipped": skipped,
        "rival_versions": {name: service.versions for name, service in services.items()},
        "model": {"name": given.model, "weights": weights},
        "clients": given.clients,
        "machine": machine.description(given.threads),
        "versions": machine.versions(),
        "commit": machine.commit() or given.commit,
        "rounds": rounds,
    }
    print_table(table)
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 1 if any(sample["errors"] for each in rounds for sample in each.values()) else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="minilm-l6", help="a shape or a folder")
    parser.add_argument("--rivals-venv", type=Path, metavar="FOLDER", action="append", default=[])
    parser.add_argument("--threads", type=int, default=detect().cpus, help="of each service")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each sample")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--commit", help="what to record where the sources are no git checkout")
    return parser.parse_args()


def installed(pythons: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The rivals that can run, each with its interpreter, and why the others cannot."""
    found, skipped = {}, {}
    for name, rival in RIVALS.items():
        for python in pythons:
            if (why := why_not(rival, python)) is None:
                found[name] = python
                break
            skipped[name] = why
    return found, {name: why for name, why in skipped.items() if name not in found}


def why_not(rival: Rival, python: str) -> str | None:
    """Why a rival cannot run, or None."""
    code = f"import {rival.library}, torch, transformers"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or ["its libraries cannot be imported"])[-1]


@contextmanager
def ours(folder: Path, threads: int) -> Iterator[Service]:
    """Packhorse, with nothing computed once for two: rivals do not do that either."""
    flags = ["--without", "dedup", "--response-cache-mb", "0"]
    flags += ["--model-id", str(folder), "--device", "cpu", "--threads", str(threads)]
    with served(flags) as server:
        yield Service(server.url, "/predict", machine.versions())


@dataclass(frozen=True)
class StartedRival:
    """A rival's process, which may not answer yet, and the files for what it says."""

    process: subprocess.Popen[bytes]
    url: str
    route: str
    said: Path
    errors: Path

    def service(self) -> Service:
        """Wait until it answers. Raises ConfigError when it does not."""
        end = time.monotonic() + START_SECONDS
        while self.process.poll() is None and time.monotonic() < end:
            if self._answers():
                versions = json.loads(self.said.read_text().splitlines()[0])
                return Service(self.url, self.route, versions)
            time.sleep(0.2)
        lines = self.errors.read_text().strip().splitlines() or ["it said nothing"]
        raise ConfigError(f"it does not answer; it said last: {lines[-1]}")

    def _answers(self) -> bool:
        body = json.dumps(ROUTES[self.route].body(["a text"])).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.url + self.route, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=10):
                return True
        except urllib.error.HTTPError as error:
            with error:
                if error.code < 500:
                    raise ConfigError(f"it answers with {error.code}: {error.read()!r}") from None
            return False
        except OSError:
            return False


@contextmanager
def started_rival(
    rival: Rival, python: str, folder: Path, threads: int, scratch: Path
) -> Iterator[StartedRival]:
    """A rival, ended at the end of a with block."""
    port = free_port()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {
        "PATH": f"{Path(python).parent}:{os.environ['PATH']}",
        "RIVAL_MODEL": str(folder),
        "RIVAL_PORT": str(port),
        "RIVAL_THREADS": str(threads),
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    said, errors = scratch / f"{rival.script}.out", scratch / f"{rival.script}.err"
    with said.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(
            [python, str(FOLDER / rival.script)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environment,
            cwd=scratch,
            start_new_session=True,
        )
    try:
        yield StartedRival(process, f"http://127.0.0.1:{port}", rival.route, said, errors)
    finally:
        stop(process)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def stop(process: subprocess.Popen[bytes]) -> None:
    """End it and its children; what does not end by itself is killed."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(15)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def one_round(
    services: dict[str, Service], number: int, given: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Every service under load once, one at a time."""
    names = list(services)
    random.Random(number).shuffle(names)
    samples = {}
    for name in names:
        load = machine_load.before()
        report = measure(plan_for(services[name], given))
        samples[name] = report | {"other_load": None if load is None else load.others}
        print(
            f"round {number}   {name:18} {report['requests_per_second']:7.1f} req/s"
            f"   p99 {(report['latency_ms'] or {}).get('p99', float('nan')):7.0f} ms",
            flush=True,
        )
    return samples


def plan_for(service: Service, given: argparse.Namespace) -> Plan:
    return Plan(
        target=target_of(service.url),
        route=service.route,
        headers=(),
        texts=read_texts(None),
        bodies=(),
        batches=(1,),
        distinct=10_000,
        connections=given.clients,
        rate=None,
        processes=1,
        warm_up=min(3.0, given.seconds / 2),
        duration=given.seconds,
        timeout=60.0,
    )


def row(name: str, rounds: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Medians over the rounds, and of the ratios to ours round by round."""
    samples = [each[name] for each in rounds]
    rates = [sample["requests_per_second"] for sample in samples]
    return {
        "requests_per_second": statistics.median(rates),
        "lowest": min(rates),
        "highest": max(rates),
        "p50_ms": median_latency(samples, "p50"),
        "p99_ms": median_latency(samples, "p99"),
        "errors": sum(sum(sample["errors"].values()) for sample in samples),
        "ours_over_this": statistics.median(
            each[OURS]["requests_per_second"] / max(each[name]["requests_per_second"], 1e-9)
            for each in rounds
        ),
    }


def median_latency(samples: list[dict[str, Any]], quantile: str) -> float | None:
    found = [sample["latency_ms"][quantile] for sample in samples if sample["latency_ms"]]
    return statistics.median(found) if found else None


def versus_best(
    table: dict[str, dict[str, Any]], rounds: list[dict[str, dict[str, Any]]]
) -> dict[str, Any] | None:
    """Against the rival with the highest median rate: times the rate, part of its p99."""
    rivals = {name: values for name, values in table.items() if name != OURS}
    if not rivals:
        return None
    best = max(rivals, key=lambda name: rivals[name]["requests_per_second"])
    parts = [
        each[OURS]["latency_ms"]["p99"] / each[best]["latency_ms"]["p99"]
        for each in rounds
        if each[OURS]["latency_ms"] and each[best]["latency_ms"]
    ]
    return {
        "rival": best,
        "times_the_rate": rivals[best]["ours_over_this"],
        "part_of_its_p99": statistics.median(parts) if parts else None,
    }


def print_table(table: dict[str, dict[str, Any]]) -> None:
    print(f"\n{'service':18} {'req/s':>8} {'p50 ms':>8} {'p99 ms':>8} {'errors':>7} {'ours is':>8}")
    for name, values in sorted(table.items(), key=lambda item: -item[1]["requests_per_second"]):
        print(
            f"{name:18} {values['requests_per_second']:8.1f} {values['p50_ms'] or 0:8.0f} "
            f"{values['p99_ms'] or 0:8.0f} {values['errors']:7} {values['ours_over_this']:7.2f}×"
        )


if __name__ == "__main__":
    raise SystemExit(main())
