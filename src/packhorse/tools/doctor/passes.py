"""The forward passes of a program: the outermost calls of a ``torch.nn.Module`` while recording."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

KEPT = 16
"""Passes of a module whose inputs are kept, to be run again; of the others only their shapes."""

_IDS, _MASK = "input_ids", "attention_mask"

_PACKED, _QUANTIZED = "torch.ao.nn.quantized", "torchao."
"""Where modules are from whose weights are 8-bit numbers and no parameters, and where parameters
that say float32 of themselves and are 8-bit numbers."""


@dataclass(slots=True)
class ForwardPass:
    """One pass.

    rows     texts in it
    width    tokens of each row, padding included; None where no ids were seen
    longest  tokens of the longest row without padding; None where that cannot be told
    real     tokens of all rows without padding
    where    the line that called the module, "predict.py:12 in predict"
    """

    module: nn.Module
    rows: int
    width: int | None
    longest: int | None
    real: int | None
    is_left_padded: bool
    autocast: torch.dtype | None
    where: list[str]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


class Recorder:
    """Passes in the order in which they began, of all threads.

    A pass is the outermost call of a module that is given a tensor, by itself or in a dictionary.
    Into a module that is given strings, and tokenizes them, it looks.
    """

    def __init__(self, folder: Path) -> None:
        """``folder`` is the script's: lines in it are told."""
        self._folder = folder
        self._local = threading.local()
        self._passes: list[ForwardPass] = []

    @property
    def passes(self) -> list[ForwardPass]:
        """Those of the model: of modules with at least half the parameters of the largest."""
        sizes = {id(p.module): size_of(p.module) for p in self._passes}
        largest = max(sizes.values(), default=0)
        return [p for p in self._passes if sizes[id(p.module)] * 2 >= largest > 0]

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Every module reports its calls within this block."""
        original = nn.Module.__call__

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            is_inside = getattr(self._local, "is_inside", False)
            if is_inside or not self._note(module, args, kwargs, sys._getframe(1)):
                return original(module, *args, **kwargs)
            self._local.is_inside = True
            try:
                return original(module, *args, **kwargs)
            finally:
                self._local.is_inside = False

        nn.Module.__call__ = call  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.__call__ = original  # type: ignore[method-assign]

    def _note(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], caller: FrameType
    ) -> bool:
        """Whether it is a pass; if so, it is remembered."""
        named = _named(args, kwargs)
        tensors = [v for v in (*args, *named.values()) if isinstance(v, Tensor) and v.dim()]
        if not tensors:
            return False
        ids = _ids(tensors, named)
        rows = (tensors[0] if ids is None else ids).shape[0]
        mask = None if ids is None else _real(ids, named, module)
        is_kept = sum(p.module is module for p in self._passes) < KEPT
        kind = tensors[0].device.type
        self._passes.append(
            ForwardPass(
                module=module,
                rows=rows,
                width=None if ids is None else ids.shape[1],
                longest=None if mask is None else int(mask.sum(1).max()),
                real=None if mask is None else int(mask.sum()),
                is_left_padded=mask is not None and not bool(mask[:, 0].all()),
                autocast=torch.get_autocast_dtype(kind)
                if torch.is_autocast_enabled(kind)
                else None,
                where=lines_of(caller, self._folder),
                args=tuple(map(_kept, args)) if is_kept else (),
                kwargs={name: _kept(value) for name, value in kwargs.items()} if is_kept else {},
            )
        )
        return True


def size_of(module: nn.Module) -> int:
    """Numbers in its parameters, and in weights that are packed."""
    packed = sum(
        int(getattr(each, "in_features", 0)) * int(getattr(each, "out_features", 0))
        for each in module.modules()
        if _is_packed(each)
    )
    return packed + sum(parameter.numel() for parameter in module.parameters())


def is_quantized(module: nn.Module) -> bool:
    """Whether some of its weights are 8-bit numbers, whatever type they say they have."""
    parameters = (type(each).__module__ for each in module.parameters())
    return any(map(_is_packed, module.modules())) or any(
        name.startswith(_QUANTIZED) for name in parameters
    )


def _is_packed(module: nn.Module) -> bool:
    return type(module).__module__.startswith(_PACKED)


def lines_of(frame: FrameType | None, folder: Path) -> list[str]:
    """Lines of this folder on the way to a frame, innermost first; none of doctor's own."""
    lines = []
    while frame is not None:
        name = frame.f_code.co_filename
        is_own = Path(name).is_relative_to(folder) and not is_doctors(name)
        if is_own and "site-packages" not in name:
            lines.append(f"{Path(name).name}:{frame.f_lineno} in {frame.f_code.co_name}")
        frame = frame.f_back
    return lines


def is_doctors(file: str) -> bool:
    """Whether a source file is one of the doctor's own."""
    return "/packhorse/tools/doctor/" in file


def _kept(value: Any) -> Any:
    """A copy: programs write the next batch into the same buffers."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, MutableMapping):
        kept = copy(value)
        kept.update({key: _kept(each) for key, each in value.items()})
        return kept
    return value


def _named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """What is given by a name, as a keyword or in a dictionary among the arguments."""
    named: dict[str, Any] = {}
    for value in (*args, *kwargs.values()):
        if isinstance(value, Mapping):
            named |= {str(key): each for key, each in value.items()}
    return named | kwargs


def _ids(tensors: list[Tensor], named: dict[str, Any]) -> Tensor | None:
    """The token ids (rows, width) among the inputs: by name, else the first whole numbers."""
    ids = named.get(_IDS)
    if isinstance(ids, Tensor) and ids.dim() == 2:
        return ids
    whole = (t for t in tensors if t.dim() == 2 and not t.is_floating_point())
    return next(whole, None)


def _real(ids: Tensor, named: dict[str, Any], module: nn.Module) -> Tensor | None:
    """(rows, width) bool, true where a token is no padding; None where that cannot be told."""
    mask = named.get(_MASK)
    if isinstance(mask, Tensor) and mask.shape == ids.shape:
        return mask != 0
    pad = getattr(getattr(module, "config", None), "pad_token_id", None)
    if mask is not None or pad is None:
        return None
    real: Tensor = ids != pad
    return real
