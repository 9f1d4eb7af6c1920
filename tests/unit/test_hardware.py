"""packhorse.hardware: cores by affinity and quota, in every layout of control groups."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from packhorse import hardware
from packhorse.hardware import Hardware, available_cpus, detect


@pytest.fixture(autouse=True)
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def cpus(folder: Path, own: str | None) -> int:
    """What is found under ``folder``/cgroup by a process whose /proc/self/cgroup says ``own``."""
    place = folder / "self"
    if own is not None:
        place.write_text(own)
    (folder / "cgroup").mkdir(exist_ok=True)
    return available_cpus(folder / "cgroup", place)


def test_without_quota_the_affinity_counts(tmp_path: Path) -> None:
    assert cpus(tmp_path, "0::/\n") == 16
    assert cpus(tmp_path, None) == 16


@pytest.mark.parametrize(
    ("limit", "found"),
    [
        ("200000 100000", 2),
        ("250000 100000", 2),
        ("150000 100000", 1),
        ("50000 100000", 1),
        ("max 100000", 16),
        ("6400000 100000", 16),
        ("nonsense", 16),
        ("", 16),
    ],
)
@pytest.mark.case(97)
def test_quota_of_v2_in_a_container(tmp_path: Path, limit: str, found: int) -> None:
    write(tmp_path / "cgroup/cpu.max", limit)
    assert cpus(tmp_path, "0::/\n") == found


@pytest.mark.case(97)
def test_the_tightest_of_nested_groups_of_v2_counts(tmp_path: Path) -> None:
    write(tmp_path / "cgroup/a.slice/cpu.max", "300000 100000")
    write(tmp_path / "cgroup/a.slice/b.scope/cpu.max", "800000 100000")
    assert cpus(tmp_path, "0::/a.slice/b.scope\n") == 3
    write(tmp_path / "cgroup/a.slice/b.scope/cpu.max", "100000 100000")
    assert cpus(tmp_path, "0::/a.slice/b.scope\n") == 1
    assert cpus(tmp_path, "0::/a.slice\n") == 3
    assert cpus(tmp_path, "0::/other.slice\n") == 16


def test_a_path_of_the_host_that_is_not_in_the_container(tmp_path: Path) -> None:
    write(tmp_path / "cgroup/cpu.max", "400000 100000")
    assert cpus(tmp_path, "0::/system.slice/docker-1f2e.scope\n") == 4
    assert cpus(tmp_path, "0::/../../1f2e\n") == 4


@pytest.mark.parametrize(
    ("quota", "found"), [("200000", 2), ("50000", 1), ("-1", 16), ("0", 16), ("x", 16)]
)
@pytest.mark.case(97)
def test_quota_of_v1(tmp_path: Path, quota: str, found: int) -> None:
    write(tmp_path / "cgroup/cpu/cpu.cfs_quota_us", quota)
    write(tmp_path / "cgroup/cpu/cpu.cfs_period_us", "100000")
    assert cpus(tmp_path, "5:memory:/\n4:cpu,cpuacct:/\n0::/\n") == found


def test_the_tightest_of_nested_groups_of_v1_counts(tmp_path: Path) -> None:
    for place, quota in (("", "-1"), ("docker/", "500000"), ("docker/1f2e/", "700000")):
        write(tmp_path / f"cgroup/cpu/{place}cpu.cfs_quota_us", quota)
        write(tmp_path / f"cgroup/cpu/{place}cpu.cfs_period_us", "100000")
    own = "9:memory:/docker/1f2e\n4:cpuacct,cpu:/docker/1f2e\n1:name=systemd:/docker\n"
    assert cpus(tmp_path, own) == 5


def test_v1_and_v2_at_once(tmp_path: Path) -> None:
    write(tmp_path / "cgroup/cpu.max", "900000 100000")
    write(tmp_path / "cgroup/cpu/cpu.cfs_quota_us", "300000")
    write(tmp_path / "cgroup/cpu/cpu.cfs_period_us", "100000")
    assert cpus(tmp_path, "2:cpu:/\n0::/\n") == 3


def test_affinity_below_the_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    write(tmp_path / "cgroup/cpu.max", "800000 100000")
    assert cpus(tmp_path, "0::/\n") == 2


def test_a_system_without_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cpus(tmp_path, None) == 1


def test_detect_looks_once_and_without_torch() -> None:
    assert detect() is detect()
    program = (
        "import sys; from packhorse.hardware import detect; found = detect(); "
        "assert found.cpus >= 1; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_native_bfloat16() -> None:
    assert Hardware(1, frozenset({"avx512_bf16"})).native_bfloat16
    assert Hardware(1, frozenset({"amx_bf16", "avx2"})).native_bfloat16
    assert not Hardware(1, frozenset({"avx2", "avx512f"})).native_bfloat16


class FakeDriver:
    """Enough of libcuda: functions that fill what they are given a pointer to."""

    def __init__(self, status: int, count: int) -> None:
        self.status = status
        self.count = count

    def cuInit(self, _: int) -> int:  # noqa: N802 - the driver's name
        return self.status

    def cuDeviceGetCount(self, count: object) -> int:  # noqa: N802
        count._obj.value = self.count  # type: ignore[attr-defined]
        return 0

    def cuDeviceGet(self, device: object, index: int) -> int:  # noqa: N802
        device._obj.value = index  # type: ignore[attr-defined]
        return 0

    def cuDeviceGetName(self, name: object, length: int, device: object) -> int:  # noqa: N802
        name.value = b"NVIDIA H200"  # type: ignore[attr-defined]
        return 0

    def cuDeviceGetAttribute(self, value: object, attribute: int, device: object) -> int:  # noqa: N802
        value._obj.value = {75: 9, 76: 0}[attribute]  # type: ignore[attr-defined]
        return 0


def find(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver | None) -> Hardware:
    def load(_: str) -> FakeDriver:
        if driver is None:
            raise OSError("libcuda.so.1: cannot open shared object file")
        return driver

    monkeypatch.setattr(hardware.ctypes, "CDLL", load)
    return detect.__wrapped__()


def test_gpus_that_the_driver_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find(monkeypatch, FakeDriver(0, 2))
    assert [(gpu.name, gpu.capability) for gpu in found.gpus] == [("NVIDIA H200", (9, 0))] * 2
    assert found.gpu_fault is None


def test_no_driver_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find(monkeypatch, None)
    assert (found.gpus, found.gpu_fault) == ((), None)


def test_a_driver_that_fails_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find(monkeypatch, FakeDriver(803, 0))
    assert (found.gpus, found.gpu_fault) == ((), "the CUDA driver answers cuInit with error 803")
