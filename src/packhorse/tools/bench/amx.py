"""Running as on a processor without AMX: libraries are told, and the kernel refuses it.

Linux grants AMX's tile registers to a process that asks (arch_prctl(2)), and
refuses when the process has an alternate signal stack too small for them.
With such a stack no library gets them, whether or not it has a switch of its
own (ONNX Runtime has none).
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import sys

REFUSED = "PACKHORSE_BENCH_NO_AMX"
"""Set in the environment of workers that are to do without."""

ENVIRONMENT = {
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",  # oneDNN in PyTorch and in OpenVINO
    "MKL_ENABLE_INSTRUCTIONS": "AVX512_E3",
    REFUSED: "1",
}
"""What makes libraries do without AMX."""

_ARCH_PRCTL = 158  # its number on x86-64
_GET_PERMISSIONS, _ASK_PERMISSION = 0x1022, 0x1023
_TILE_DATA = 18
_SMALL_STACK = 2048  # bytes: the least that sigaltstack(2) takes


class _Stack(ctypes.Structure):
    """stack_t of sigaltstack(2)."""

    _fields_ = (("pointer", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


_kept: list[object] = []


def refuse() -> None:
    """Make the kernel refuse AMX to this process; to be called before libraries ask.

    Raises RuntimeError when it was granted before, or is granted still.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    stack = _Stack(address, 0, _SMALL_STACK)
    _kept.append((memory, stack))
    if libc.sigaltstack(ctypes.byref(stack), None) != 0:
        raise RuntimeError(f"sigaltstack: errno {ctypes.get_errno()}")
    if _is_x86() and libc.syscall(_ARCH_PRCTL, _ASK_PERMISSION, _TILE_DATA) == 0:
        raise RuntimeError("the kernel grants AMX although the signal stack is too small for it")


def is_granted() -> bool | None:
    """Whether this process may use AMX: no library that multiplies with it runs without asking.

    None where that cannot be known.
    """
    if not _is_x86():
        return None
    permissions = ctypes.c_uint64()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_ARCH_PRCTL, _GET_PERMISSIONS, ctypes.byref(permissions)) != 0:
        return None
    return bool(permissions.value >> _TILE_DATA & 1)


def _is_x86() -> bool:
    return sys.platform == "linux" and platform.machine() == "x86_64"
