"""Memory that grows from call to call: which tensors stay alive, and where they were allocated."""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from packhorse.tools.bench.units import scaled
from packhorse.tools.doctor.findings import Finding
from packhorse.tools.doctor.free_memory import free_bytes, how_long
from packhorse.tools.doctor.passes import is_doctors

CALLS = 6
"""Equal calls. What grows at every one of the last five is no cache that fills up."""

PYTHON_CALLS = 8
"""Likewise, for objects other than tensors."""

FRAMES = 25
PYTHON_BYTES = 1024
"""Bytes a call under which growth of other objects than tensors is not told: counters, logs."""

Site = tuple[str, ...]
"""Lines on the way to an allocation, innermost first."""

CHANGE = (
    "Something keeps what each call made: a list, a cache without a bound, or a tensor whose graph "
    "was never freed. Keep numbers (`.item()`, `.tolist()`) instead of tensors, run under "
    "torch.inference_mode(), and bound what is kept."
)


class AllocationSites(TorchDispatchMode):
    """Remembers for every storage that an operation of this thread made where that was."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sites: dict[int, Site] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        outputs = result if isinstance(result, (tuple, list)) else (result,)
        made = [_address(value) for value in outputs if isinstance(value, Tensor)]
        if made:
            taken = {_address(value) for value in args if isinstance(value, Tensor)}
            site = _site(f"allocated by {func}")
            self.sites.update({address: site for address in made if address not in taken})
        return result


def find(call: Callable[[], None]) -> Finding | None:
    """Call again and again; the growth that is found, of tensors first."""
    call()
    started = time.perf_counter()
    call()
    seconds = time.perf_counter() - started
    gc.collect()
    gc.freeze()  # what is there already is not looked at again and again
    try:
        return _growth(call, seconds)
    finally:
        gc.unfreeze()


def _growth(call: Callable[[], None], seconds: float) -> Finding | None:
    live = []
    allocated = []
    with AllocationSites() as mode:
        for _ in range(CALLS):
            call()
            live.append(_live_tensors(mode.sites))
            allocated.append(_on_gpu())
    growing = [site for site in live[-1] if _grows([step[site] for step in live])]
    if growing:
        largest = max(growing, key=lambda site: live[-1][site] - live[0][site])
        each = (live[-1][largest] - live[0][largest]) / (CALLS - 1)
        return _finding(each, "tensors", largest, seconds, is_on_gpu=_grows(allocated))
    if _grows(allocated):
        each = (allocated[-1] - allocated[0]) / (CALLS - 1)
        what = "device memory without an owner in Python"
        return _finding(each, what, (), seconds, is_on_gpu=True)
    return _python_growth(call, seconds)


def _grows(sizes: list[int]) -> bool:
    """At every step but the first, which may fill what is kept once."""
    return all(later > earlier for earlier, later in pairwise(sizes[1:]))


def _live_tensors(sites: dict[int, Site]) -> Counter[Site]:
    """Bytes of the storages of all tensors that are alive, by where they were allocated."""
    gc.collect()
    found: dict[int, tuple[Site, int]] = {}
    for thing in gc.get_objects():
        if not issubclass(type(thing), Tensor) or thing.layout != torch.strided:
            continue
        address = _address(thing)
        if address:
            shape = "×".join(map(str, thing.shape)) or "scalar"
            unknown = (f"a tensor {shape} of {str(thing.dtype).removeprefix('torch.')}",)
            size = thing.untyped_storage().nbytes()
            found[address] = (sites.get(address, unknown), size)
    counted: Counter[Site] = Counter()
    for site, size in found.values():
        counted[site] += size
    return counted


def _address(tensor: Tensor) -> int:
    """Of its storage; 0 where it has none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return 0


def _site(what: str) -> Site:
    """The lines of the stack, without those of torch that only pass the call on."""
    lines = [what]
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and len(lines) < FRAMES:
        name = frame.f_code.co_filename
        if "/torch/" not in name and not _is_ours(name) and name[:1] != "<":
            lines.append(f"{_short(name)}:{frame.f_lineno} in {frame.f_code.co_name}")
        frame = frame.f_back
    return tuple(lines)


def _short(name: str) -> str:
    """A file's name; of a library's file its path within the library."""
    _, inside, rest = name.rpartition("/site-packages/")
    return rest if inside else Path(name).name


def _is_ours(name: str) -> bool:
    """Whether a file is one of the instruments'."""
    return is_doctors(name) or name.endswith("/tracemalloc.py")


def _on_gpu() -> int:
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0


def _python_growth(call: Callable[[], None], seconds: float) -> Finding | None:
    """Objects other than tensors: lists, strings, NumPy arrays.

    Counted is the least that any step brought: what waits for the garbage
    collector grows for some calls, and then does not.
    """
    tracemalloc.start(FRAMES)
    try:
        steps = []
        for _ in range(PYTHON_CALLS):
            call()
            gc.collect()
            steps.append(_traced())
    finally:
        tracemalloc.stop()
    growth = {site: _least_step([step[site] for step in steps]) for site in steps[-1]}
    worst = max(growth, key=lambda site: growth[site], default=None)
    if worst is None or growth[worst] < PYTHON_BYTES:
        return None
    return _finding(growth[worst], "objects", worst, seconds)


def _least_step(sizes: list[int]) -> int:
    """The smallest growth from one call to the next; the first may fill what is kept once."""
    return min(later - earlier for earlier, later in pairwise(sizes[1:]))


def _traced() -> Counter[Site]:
    """Bytes by stack, innermost line first."""
    counted: Counter[Site] = Counter()
    for statistic in tracemalloc.take_snapshot().statistics("traceback"):
        frames = [frame for frame in reversed(statistic.traceback) if frame.filename[:1] != "<"]
        if not frames or _is_ours(frames[0].filename):  # what counts is not counted
            continue
        lines = [f"{_short(f.filename)}:{f.lineno}" for f in frames if not _is_ours(f.filename)]
        counted[tuple(lines)] += statistic.size
    return counted


def _finding(
    each: float, what: str, site: Site, seconds: float, is_on_gpu: bool = False
) -> Finding:
    """``each`` bytes a call that takes ``seconds``; it costs nothing until memory is used up."""
    room = free_bytes(is_on_gpu)
    return Finding(
        id="memory-growth",
        measured=f"{each:,.0f} bytes of {what} more after every call; with such calls in a row the "
        f"{scaled(room, 'B')} that are free are used up after {how_long(room / each * seconds)}, "
        "and then every text is lost",
        figure=each,
        unit="bytes a call",
        costs=0.0,
        change=CHANGE,
        where=list(site),
    )
