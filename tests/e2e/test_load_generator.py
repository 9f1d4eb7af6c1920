"""The load generator against a server of ours: both count the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.service import Service, service, until


def bench(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, report and standard output of one run."""
    done = subprocess.run(
        [sys.executable, "-m", "packhorse.cli", "bench", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stdout


def counted(server: Service, name: str, **labels: str) -> float:
    """A sample of its metrics whose labels include these; 0 if there is none."""
    total = 0.0
    for line in server.get("/metrics").text.splitlines():
        series, _, value = line.rpartition(" ")
        if series.partition("{")[0] == name and all(
            f'{key}="{text}"' in series for key, text in labels.items()
        ):
            total += float(value)
    return total


@pytest.mark.long
def test_the_generator_and_the_servers_metrics_count_the_same(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    with service(front_ends=2, max_concurrent_requests=24, api_key="secret") as server:
        server.control(seconds=0.005)
        code, report, said = bench(
            *("--url", server.url, "--connections", "16", "--batch", "1,2,5", "--json", str(file)),
            *("--api-key", "secret"),
            *("--warm-up", "0.2", "--duration", "0.6", "--processes", "2"),
        )
        totals = report["totals"]
        assert "secret" not in said + file.read_text()
        assert totals["by_status"]["429"] > 0  # as the limit is below what is asked at once
        assert not totals["errors"]
        for status, count in totals["by_status"].items():
            labels = {"route": "predict", "status": status}
            assert counted(server, "packhorse_requests_total", **labels) == count
        until(lambda: counted(server, "packhorse_sequences_total") >= totals["texts"])
        assert counted(server, "packhorse_sequences_total") == totals["texts"]
        assert counted(server, "packhorse_tokens_total") == totals["tokens"]
    assert code == 0
    assert sum(totals["by_status"].values()) == totals["sent"] > 100
    assert report["server_ms"]["inference"]["p50"] >= 5
    assert json.loads(file.read_text()) == report
    assert said.splitlines()[0].startswith("load ")


@pytest.mark.long
def test_a_server_is_started_and_ended_for_a_measurement() -> None:
    code, report, _ = bench(
        *("--connections", "4", "--warm-up", "0.2", "--duration", "1"),
        *("--", "--front-ends", "1", "--threads", "1"),
    )
    assert code == 0
    assert report["answered_2xx"] > 0
    assert report["server"]["cpu_seconds"]["engine"] > 0
    assert report["server"]["cpu_seconds"]["front end"] > 0


def script(name: str, *arguments: str) -> dict[str, Any]:
    """What a script of benchmarks/ reports, with a tiny model."""
    done = subprocess.run(
        [sys.executable, f"benchmarks/{name}", "--model", "tiny", *arguments],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


@pytest.mark.long
def test_the_gpu_script_measures_all_loads_and_agrees_with_the_metrics() -> None:
    report = script(
        *("serve_h200.py", "--device", "cpu", "--front-ends", "1", "--seconds", "1"),
        *("--processes", "2", "--connections", "16", "--batch-connections", "4"),
    )
    assert [run["load"] for run in report["runs"]] == ["one", "batches", "alone"]
    assert all(run["counts_agree"] for run in report["runs"])
    batches = report["runs"][1]
    assert batches["totals"]["tokens"] == 50 * batches["totals"]["texts"]
    assert report["best"]["batches"]["tokens_per_second"] > 0


@pytest.mark.long
def test_rivals_that_are_not_installed_are_named() -> None:
    report = script("serve_cpu.py", "--rounds", "1", "--seconds", "1", "--clients", "4")
    assert report["services"]["packhorse"]["requests_per_second"] > 0
    names = {"fastapi-naive", "fastapi-batching", "mosec", "litserve", "infinity"}
    assert {*report["services"], *report["skipped"]} == {"packhorse", *names}
