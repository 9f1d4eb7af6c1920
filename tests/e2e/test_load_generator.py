"""The load generator against a server of ours: both count the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def test_the_generator_and_the_servers_metrics_count_the_same(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    with service(front_ends=2, max_concurrent_requests=24, api_key="secret") as server:
        server.control(seconds=0.005)
        code, report, said = bench(
            *("--url", server.url, "--connections", "16", "--batch", "1,2,5", "--json", str(file)),
            *("--api-key", "secret"),
            *("--warm-up", "0.5", "--duration", "1.5", "--processes", "2"),
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


def test_a_server_is_started_and_ended_for_a_measurement() -> None:
    code, report, _ = bench(
        *("--connections", "4", "--warm-up", "0.2", "--duration", "1"),
        *("--", "--front-ends", "1", "--threads", "1"),
    )
    assert code == 0
    assert report["answered_2xx"] > 0
    assert report["server"]["cpu_seconds"]["engine"] > 0
    assert report["server"]["cpu_seconds"]["front end"] > 0
