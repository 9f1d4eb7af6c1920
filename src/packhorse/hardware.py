"""What this machine has, found without importing torch."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU: its name and compute capability, (9, 0) for Hopper."""

    name: str
    capability: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Hardware:
    """cpus: whole cores this process may use (quota and affinity, at least 1);
    cpu_features: the processor's feature words as /proc/cpuinfo spells them;
    gpu_fault: why no GPU is usable, if a driver is there and says so."""

    cpus: int
    cpu_features: frozenset[str]
    gpus: tuple[Gpu, ...] = ()
    gpu_fault: str | None = None

    @property
    def native_bfloat16(self) -> bool:
        """Whether the processor multiplies bfloat16 itself (AMX or AVX512-BF16)."""
        return bool(self.cpu_features & {"amx_bf16", "avx512_bf16"})

    @property
    def native_int8(self) -> bool:
        """Whether the processor sums products of bytes in 32 bits at once (AMX or VNNI)."""
        return bool(self.cpu_features & {"amx_int8", "avx512_vnni", "avx_vnni"})


@cache
def detect() -> Hardware:
    """Look once."""
    gpus, fault = _find_gpus()
    return Hardware(cpus=available_cpus(), cpu_features=_cpu_features(), gpus=gpus, gpu_fault=fault)


def available_cpus(
    cgroup: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> int:
    """Whole cores this process may use: affinity, then the container's quota, rounded down.

    cgroup  where control groups are mounted
    own     the file that names the groups of this process

    Reads cgroup v2 (cpu.max) and v1 (cpu.cfs_quota_us); see the kernel's
    admin-guide/cgroup-v2.rst. A pool sized from the host's cores instead is
    throttled by the quota.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:  # macOS has no affinity
        cores = os.cpu_count() or 1
    quotas = [_quota_v2(group) for group in _groups(cgroup, own, "")]
    quotas += [_quota_v1(group) for group in _groups(cgroup / "cpu", own, "cpu")]
    tightest = min((quota for quota in quotas if quota is not None), default=cores)
    return max(1, min(cores, int(tightest)))


def _groups(root: Path, own: Path, controller: str) -> list[Path]:
    """The folders of this process's group and of the groups around it, up to the root.

    ``own`` has lines such as ``4:cpu,cpuacct:/docker/1f2e``, and ``0::/`` for v2.
    Within a container the path is often the host's, and not there: the root
    then is the container's own group.
    """
    path = ""
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, place = line.split(":", 2)
            if controller in controllers.split(","):
                path = place.lstrip("/")
    inner = root / path
    return [folder for folder in (inner, *inner.parents) if folder.is_relative_to(root)]


def _quota_v2(group: Path) -> float | None:
    """cpu.max of a group, in cores."""
    try:
        limit, period = (group / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        return None


def _quota_v1(group: Path) -> float | None:
    try:
        limit = int((group / "cpu.cfs_quota_us").read_text())
        period = int((group / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return limit / period if limit > 0 else None


def _cpu_features() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, words = line.partition(":")
        if name.strip() in ("flags", "Features"):  # x86 and arm64 spellings
            return frozenset(words.split())
    return frozenset()


def _find_gpus() -> tuple[tuple[Gpu, ...], str | None]:
    """GPUs that the CUDA driver shows to this process, and the driver's complaint if any.

    Asks libcuda directly (CUDA driver API), since torch takes seconds to import.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return (), None
    if status := cuda.cuInit(0):
        return (), f"the CUDA driver answers cuInit with error {status}"
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    return tuple(_describe(cuda, index) for index in range(count.value)), None


def _describe(cuda: ctypes.CDLL, index: int) -> Gpu:
    device = ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(device), index)
    name = ctypes.create_string_buffer(128)
    cuda.cuDeviceGetName(name, len(name), device)
    capability = []
    for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
        value = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        capability.append(value.value)
    return Gpu(name.value.decode(), (capability[0], capability[1]))
