"""The kernels under Triton's interpreter, or on the GPU where there is one.

The interpreter executes a kernel's own source with NumPy, one program after
the other: wrong indices, masks and bounds show without a GPU. It must be
chosen before Triton is imported, since Triton's own functions are decorated
then.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

INTERPRETED = not torch.cuda.is_available()

if INTERPRETED:
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise pytest.UsageError("triton was imported before tests/kernels could interpret it")
    os.environ["TRITON_INTERPRET"] = "1"

pytest.importorskip("triton")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of two half types the interpreter computes one as it does the other: float16 is long here,
    and bfloat16 but for every third case, where float32 has the same cases.

    Where a test has one type alone it stays.
    """
    folder = Path(__file__).parent
    own = [item for item in items if INTERPRETED and item.path.parent == folder]
    kinds: dict[str, set[object]] = {}
    for item in own:
        kinds.setdefault(_test_of(item), set()).add(_dtype_of(item))
    cases: Counter[str] = Counter()
    for item in own:
        test, dtype = _test_of(item), _dtype_of(item)
        if dtype is torch.float16 and torch.bfloat16 in kinds[test]:
            item.add_marker(pytest.mark.long)
        if dtype is torch.bfloat16 and torch.float32 in kinds[test]:
            if cases[test] % 3:
                item.add_marker(pytest.mark.long)
            cases[test] += 1


def _test_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _dtype_of(item: pytest.Item) -> object:
    return item.callspec.params.get("dtype") if hasattr(item, "callspec") else None


def _mend_interpreter() -> None:
    """Give Triton's interpreter what the compiler has: bfloat16, and scalars as loop bounds."""
    import triton.language as tl
    from triton.runtime import interpreter as ti

    builder = ti.InterpreterBuilder
    multiply, cast, patch_tensor = builder.create_dot, builder.cast_impl, ti._patch_lang_tensor

    def widened(operand: Any) -> Any:
        """bfloat16 is held as its 16 bits, which would be multiplied as integers."""
        if operand.dtype != tl.bfloat16:
            return operand
        bits = operand.data.astype(np.uint32) << 16
        return ti.TensorHandle(bits.view(np.float32), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return multiply(self, widened(a), widened(b), *rest)

    def create_fp_trunc(self: Any, source: Any, kind: Any) -> Any:
        """To bfloat16 by rounding to the nearest; the interpreter cuts off."""
        if source.dtype.scalar != tl.float32 or kind.scalar != tl.bfloat16:
            return cast(self, source, kind)
        data = np.atleast_1d(np.ascontiguousarray(source.data))
        rounded = torch.from_numpy(data).bfloat16().view(torch.int16).numpy().view(np.uint16)
        return ti.TensorHandle(rounded.reshape(source.data.shape), tl.bfloat16)

    def patch(tensor: Any, *scope: Any) -> None:
        """A loaded scalar is an array of one element: Triton 3.6 with NumPy >= 2.4 trips on it."""
        patch_tensor(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.squeeze())

    builder.create_dot, builder.create_fp_trunc = create_dot, create_fp_trunc
    ti._patch_lang_tensor = patch


def _hasten_interpreter() -> None:
    """Leave out what Triton's interpreter does again and again to the same end: 3/4 of the time."""
    import triton.language as tl
    from triton.runtime import interpreter as ti

    patch_lang, patched = ti._patch_lang, set()

    def patch_once(fn: Any) -> Any:
        """Each launch and each call of a function of ours would replace all of the language."""
        mine = frozenset(id(v) for v in fn.__globals__.values() if v is tl or v is tl.core)
        if mine in patched:
            return _Kept()
        patched.add(mine)
        patch_lang(fn)
        return _Kept()

    def reduce_slices(self: Any, inputs: Any) -> list[Any]:
        """A function of ours along an axis, as ever in order, but for all other indices at once."""
        parts, axis = self.unravel(inputs, self.axis)
        assert self.axis is not None
        kinds = [part.dtype for part in parts]

        def at(place: int) -> list[Any]:
            found = (np.take(part.handle.data, place, axis) for part in parts)
            return [self.to_tensor(one, kind) for one, kind in zip(found, kinds, strict=True)]

        total = at(0)
        for place in range(1, parts[0].handle.data.shape[axis]):
            got = self.combine_fn.fn(*total, *at(place))
            total = list(got) if isinstance(got, tuple) else [got]
        if not self.keep_dims:
            return total
        kept = (np.expand_dims(one.handle.data, axis) for one in total)
        return [self.to_tensor(one, kind) for one, kind in zip(kept, kinds, strict=True)]

    type_of, type_of_scalar = ti._get_np_dtype, functools.cache(ti._get_np_dtype)

    def type_of_elements(kind: Any) -> Any:
        scalar = kind.scalar  # blocks and pointers have no hash
        return type_of(scalar) if scalar.is_ptr() else type_of_scalar(scalar)

    ti._patch_lang, ti._get_np_dtype = patch_once, type_of_elements
    ti.ReduceOps.generic_reduce = reduce_slices


class _Kept:
    """What would undo the replacements after a launch; nothing here is compiled."""

    def restore(self) -> None:
        pass


if INTERPRETED:
    _mend_interpreter()
    _hasten_interpreter()
    torch.set_num_threads(1)  # the tensors are tiny


@pytest.fixture(autouse=True)
def _floating_point_as_on_a_gpu() -> Iterator[None]:
    """Infinity minus infinity is NaN there, not a warning."""
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cpu" if INTERPRETED else "cuda")
