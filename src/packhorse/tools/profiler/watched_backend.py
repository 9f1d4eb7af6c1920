"""A backend whose operations are named for profilers, counted and timed, each by itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from packhorse.models.backend import Backend, Dense
from packhorse.request import Int32Array
from packhorse.tools.profiler.counts import flops, moved_bytes

OPERATIONS = (
    "embed",
    "dense",
    "dense_residual_norm",
    "feed_forward",
    "dense_add_norm",
    "dense_gated",
    "norm",
    "rotate",
    "attention",
    "cls_attention",
    "first_tokens",
    "pool",
    "head_layer",
)


@dataclass(frozen=True, slots=True)
class OperationCall:
    """One call: its operation and shape, "dense 384→1152", what it computes and moves, seconds."""

    name: str
    flops: int
    bytes: int
    seconds: float


@dataclass(slots=True)
class _Watched:
    """A call whose time is known when the device is through with it."""

    name: str
    flops: int
    bytes: int
    seconds: Callable[[], float]


class WatchedBackend:
    """Stands for ``backend``; ``lengths``, int32 (N,), are those of the batch that is run."""

    def __init__(self, backend: Backend, device: torch.device, lengths: Int32Array) -> None:
        self._backend = backend
        self._device = device
        self._lengths = lengths
        self._calls: list[_Watched] = []

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._backend, name)
        if name not in OPERATIONS:
            return attribute

        def operation(*args: Any, **kwargs: Any) -> Any:
            with _named(f"packhorse::{name}", self._device):
                seconds, result = self._timed(attribute, args, kwargs)
            self._calls.append(
                _Watched(
                    _described(name, args, kwargs),
                    flops(name, args, kwargs, self._lengths),
                    moved_bytes(name, args, kwargs, result),
                    seconds,
                )
            )
            return result

        return operation

    def taken(self) -> list[OperationCall]:
        """The calls since the last time, in order; waits for the device."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        calls = [OperationCall(c.name, c.flops, c.bytes, c.seconds()) for c in self._calls]
        self._calls.clear()
        return calls

    def _timed(
        self, operation: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Callable[[], float], Any]:
        """The result, and how to ask for the seconds later: a GPU is not waited for."""
        if self._device.type != "cuda":
            started = time.perf_counter()
            result = operation(*args, **kwargs)
            passed = time.perf_counter() - started
            return (lambda: passed), result
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        result = operation(*args, **kwargs)
        last.record()
        return (lambda: first.elapsed_time(last) / 1000), result


@contextmanager
def _named(name: str, device: torch.device) -> Iterator[None]:
    """A range for torch's profiler, and for Nsight Systems where there is a GPU."""
    if device.type == "cuda":
        torch.cuda.nvtx.range_push(name)
    try:
        with torch.profiler.record_function(name):
            yield
    finally:
        if device.type == "cuda":
            torch.cuda.nvtx.range_pop()


def _described(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """With the widths of its dense layers, so that unlike calls of one name stay apart."""
    given = [*args, *kwargs.values()]
    widths = [f"{d.weight.shape[1]}→{d.weight.shape[0]}" for d in given if isinstance(d, Dense)]
    if name == "head_layer":
        weight = [value for value in given if isinstance(value, Tensor)][1]
        widths = [f"{weight.shape[1]}→{weight.shape[0]}"]
    return " ".join([name, *widths])
