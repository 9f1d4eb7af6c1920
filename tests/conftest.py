"""What holds for every test: GPU tests are skipped by name, results can be written as JSON."""

from __future__ import annotations

import json
import os
import platform
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before torch is imported: threads of OpenMP that have nothing to do would spin, on cores that
# other tests, the processes under test among them, have use for.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts us in the background says so; the programs under test would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests never ask the hub, whatever they load; those of the hub's client name a local server.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ["HF_HUB_OFFLINE"] = "1"


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return  # xdist's own process runs no test, and its workers wait for it: seconds, for torch
    if not has_gpu():
        # Before anything imports Triton: its functions are decorated for the interpreter then.
        os.environ["TRITON_INTERPRET"] = "1"


_reports: list[dict[str, object]] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", type=Path, help="write every test's outcome to this JSON file")
    parser.addoption(
        "--slice", action="store_true", help="run long tests for seconds instead of minutes"
    )


@pytest.fixture
def long_seconds(request: pytest.FixtureRequest) -> float:
    """How long a soak, a fuzz or a kill loop goes on: a minute, or a few seconds with --slice."""
    return 6.0 if request.config.getoption("--slice") else 60.0


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """An engine that a test before had in this process has set all cores, for tiny models."""
    import torch

    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu") and not has_gpu():
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        _reports.append(
            {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 3)}
        )


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that cannot be imported has failed, too; each worker says so."""
    found = {"test": report.nodeid, "outcome": "failed", "seconds": 0.0}
    if report.failed and found not in _reports:
        _reports.append(found)


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> Iterator[None]:
    path = session.config.getoption("--results")
    if path is not None and not hasattr(session.config, "workerinput"):  # not in xdist's workers
        path.parent.mkdir(parents=True, exist_ok=True)
        summary = {
            "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "exit_status": int(exitstatus),
            "passed": sum(r["outcome"] == "passed" for r in _reports),
            "failed": sum(r["outcome"] == "failed" for r in _reports),
            "skipped": sum(r["outcome"] == "skipped" for r in _reports),
            "tests": _reports,
        }
        path.write_text(json.dumps(summary, indent=1))
    return (yield)
