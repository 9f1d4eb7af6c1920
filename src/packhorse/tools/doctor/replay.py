"""A program's own forward passes, run again as they were or without one fault, and timed."""

from __future__ import annotations

import time
from collections.abc import Callable, MutableMapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from packhorse.tools.doctor.passes import ForwardPass

ROUNDS, SECONDS = 3, 0.15
"""At least so many rounds, and so long: passes of a few µs are soon disturbed."""

BATCH = 32
"""Texts a pass when single texts are put together."""


def device_of(passes: Sequence[ForwardPass]) -> torch.device:
    """Where the model of these passes is."""
    return next((p.device for p in passes[0].module.parameters()), torch.device("cpu"))


def run(one: ForwardPass) -> Any:
    """The pass once more, without gradients."""
    device = device_of([one])
    with (
        torch.no_grad(),
        torch.autocast(device.type, one.autocast, enabled=one.autocast is not None),
    ):
        again = _mapped([one], lambda values: values[0])  # some write into a dictionary
        return again.module(*again.args, **again.kwargs)


def seconds(passes: Sequence[ForwardPass], after: Callable[[Any], None] | None = None) -> float:
    """Of all these passes in a row, the best of a few rounds; ``after`` gets each output."""
    device = device_of(passes)

    def once() -> float:
        started = time.perf_counter()
        for one in passes:
            output = run(one)
            if after is not None:
                after(output)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - started

    run(passes[0])
    rounds: list[float] = []
    while len(rounds) < ROUNDS or sum(rounds) < SECONDS:
        rounds.append(once())
    return min(rounds)


def trimmed(passes: Sequence[ForwardPass]) -> list[ForwardPass]:
    """The same passes, each only as wide as its longest text."""
    return [_trimmed(one) for one in passes]


def together(passes: Sequence[ForwardPass]) -> list[ForwardPass]:
    """The same rows, BATCH a pass; narrower rows are filled up with zeros."""
    groups = [passes[i : i + BATCH] for i in range(0, len(passes), BATCH)]
    return [_joined(group) for group in groups]


def in_type(passes: Sequence[ForwardPass], dtype: torch.dtype) -> list[ForwardPass]:
    """The same passes in another type. Their modules are changed, and stay so."""
    for one in passes:
        one.module.to(dtype)
    return [_mapped([one], lambda values: _cast(values[0], dtype)) for one in passes]


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _trimmed(one: ForwardPass) -> ForwardPass:
    width, longest = one.width, one.longest
    if width is None or longest is None or longest == width:
        return one
    start = width - longest if one.is_left_padded else 0

    def cut(values: list[Tensor]) -> Tensor:
        tensor = values[0]
        if tensor.dim() == 2 and tensor.shape[1] == width:
            return tensor[:, start : start + longest].contiguous()
        return tensor

    return replace(_mapped([one], cut), width=longest)


def _joined(group: Sequence[ForwardPass]) -> ForwardPass:
    def join(values: list[Tensor]) -> Tensor:
        if values[0].dim() == 0:
            return values[0]
        width = max(value.shape[-1] for value in values)
        filled = [torch.nn.functional.pad(v, (0, width - v.shape[-1])) for v in values]
        return torch.cat(filled)

    return replace(_mapped(group, join), rows=sum(one.rows for one in group))


def _mapped(group: Sequence[ForwardPass], change: Callable[[list[Tensor]], Tensor]) -> ForwardPass:
    """The first pass, each tensor among its inputs made anew from those of all passes."""
    first = group[0]
    args = tuple(_changed([one.args[i] for one in group], change) for i in range(len(first.args)))
    kwargs = {name: _changed([one.kwargs[name] for one in group], change) for name in first.kwargs}
    return replace(first, args=args, kwargs=kwargs)


def _changed(values: list[Any], change: Callable[[list[Tensor]], Tensor]) -> Any:
    """One argument of all passes as one; tensors in dictionaries, too."""
    first = values[0]
    if isinstance(first, Tensor):
        return change(values)
    if isinstance(first, MutableMapping):
        made = copy(first)
        made.update({key: _changed([each[key] for each in values], change) for key in first})
        return made
    return first
