"""What the device can do at most, measured beside the rungs: matrix products and copies."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

MATMUL_SIZE = {"cpu": 2048, "cuda": 8192}
"""n of the n³ product: large enough to be bound by arithmetic, small enough to be repeated."""

COPIED_BYTES = {"cpu": 256 << 20, "cuda": 1 << 30}
"""Far more than any cache holds."""

_REPEATS = 5
_IN_A_ROW = {"cpu": 2, "cuda": 10}


@dataclass(frozen=True, slots=True)
class Ceiling:
    """flops: of the product, in FLOP/s; bytes: of a copy, read and written, in bytes/s."""

    flops: float
    bytes: float


class Ceilings:
    """Operands that stay on the device between measurements."""

    def __init__(self, device: str, dtypes: list[str], threads: int) -> None:
        self._device = torch.device(device)
        self._kind = self._device.type
        if self._kind == "cpu":
            torch.set_num_threads(threads)
        self._size = MATMUL_SIZE[self._kind]
        self._operands = {dtype: self._operand(getattr(torch, dtype)) for dtype in dtypes}
        count = COPIED_BYTES[self._kind] // 4
        self._source = torch.ones(count, device=self._device)
        self._target = torch.zeros(count, device=self._device)

    def measure(self) -> dict[str, Ceiling]:
        """By type; the copy is the same in each."""
        copied = 2 * COPIED_BYTES[self._kind]
        rate = copied / self._best(lambda: self._target.copy_(self._source))
        return {
            dtype: Ceiling(2 * self._size**3 / self._best(lambda x=x: x @ x), rate)  # type: ignore[misc]
            for dtype, x in self._operands.items()
        }

    def _operand(self, dtype: torch.dtype) -> torch.Tensor:
        """Normal numbers, scaled so that products stay in range: zeros run faster than data."""
        generator = torch.Generator(self._device).manual_seed(0)
        x = torch.randn(self._size, self._size, device=self._device, generator=generator)
        scaled: torch.Tensor = x / self._size**0.5
        return scaled.to(dtype)

    def _best(self, operation: Callable[[], object]) -> float:
        """Seconds of one, the best of a few series: a ceiling is what was reached once."""
        count = _IN_A_ROW[self._kind]
        operation()
        return min(self._series(operation, count) for _ in range(_REPEATS)) / count

    def _series(self, operation: Callable[[], object], count: int) -> float:
        self._wait()
        started = time.perf_counter()
        for _ in range(count):
            operation()
        self._wait()
        return time.perf_counter() - started

    def _wait(self) -> None:
        if self._kind == "cuda":
            torch.cuda.synchronize(self._device)
