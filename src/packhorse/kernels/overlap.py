"""A kernel that starts while the one before it is still running.

From compute capability 9.0 a launch can be told that it may start before its
predecessor on the stream has ended (programmatic dependent launch; CUDA C++
Programming Guide). In a chain of kernels that take two microseconds each,
launch and set-up are half of the time, and those overlap.

Two rules keep that safe, and every kernel here obeys both. It calls ``follow``
before it reads or writes memory, which waits until the predecessor has ended
and its writes are visible; since that one waited for its own predecessor, all
earlier kernels have ended too. And what may happen before the wait changes no
result: ``prefetch`` of weights into L2, which reads nothing into the kernel.
"""

# ruff: noqa: N803 - what is fixed at compile time is in capitals, as in Triton's own code
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def follow(OVERLAP: tl.constexpr):
    """Let the next kernel start, and wait for the end of the one before."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def prefetch(pointers, BYTES: tl.constexpr):
    """Have L2 fetch BYTES (a multiple of 16) from each pointer; compute capability 9.0 on."""
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; // no result in $0",
        "=r,l,r",
        [pointers, tl.full(pointers.shape, BYTES, tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
