"""Every kernel compiled to machine code for every generation of GPU, on a machine without one.

Compiling and interpreting exclude each other in one process, so this file is
also a program that compiles. It calls the public functions with Triton's launch
replaced by a compilation of exactly what would have been launched: the same
types, tile sizes and alignments.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.long,  # a minute and a half of compiling
    pytest.mark.timeout(600),  # all of it happens before the first test
]

CAPABILITIES = [80, 86, 89, 90, 100, 120]
SHARED_MEMORY = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
"""KiB that one program may take."""
ONE_BINARY = {80: (86, 89)}
"""GPUs of one generation run the same code, and PTX of the first is PTX for all of them. A slice
has it assembled for each, an eighth of the work; a full run compiles for each from the source."""
FLOAT32_TOO = {80, 90}
EVERYWHERE = {
    "_expand", "_embedding_layer_norm", "_layer_norm", "_bias_activation",
    "_packed_attention", "_cls_attention", "_first_token_pool", "_pool", "_head_layer",
    "_head_product", "_gate", "_rotate", "_position_scores",
}  # fmt: skip
ON_SOME = {
    90: {
        "_linear_activation", "_linear_activation_resident", "_few_rows", "_add_residual_norm",
        "_linear_gated",
    },
}  # fmt: skip
OVERLAPPING = {90, 100, 120}
"""Where a kernel may start before its predecessor has ended."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory, request):
    """For each GPU: (kernel, dtype, bytes of shared memory, of machine code, whether it waits)."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, __file__]
    command += ["--slice"] if request.config.getoption("--slice") else []
    lines = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.splitlines()
    found = {capability: [] for capability in CAPABILITIES}
    for capability, name, dtype, *numbers in map(str.split, lines):
        found[int(capability)].append((name, dtype, *map(int, numbers)))
    return found


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_kernel_compiles(capability, compiled):
    found = compiled[capability]
    assert {name for name, *_ in found} == EVERYWHERE | ON_SOME.get(capability, set())
    assert all(code > 0 for *_, code, _ in found)
    assert all(waits == (capability in OVERLAPPING) for *_, waits in found)
    assert max(shared for *_, shared, _, _ in found) <= SHARED_MEMORY[capability] * 1024
    # float32 multiplied as such takes long to compile: the oldest and the measured GPU do.
    assert (("_packed_attention", "torch.float32") in {f[:2] for f in found}) == (
        capability in FLOAT32_TOO
    )


def assembled(ptx: str, capability: int) -> int:
    """Bytes of the machine code that NVIDIA's assembler makes of it for another GPU."""
    from triton.backends.nvidia.compiler import get_ptxas

    with tempfile.TemporaryDirectory() as folder:
        source, code = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        command = [get_ptxas(capability).path, f"--gpu-name=sm_{capability}"]
        subprocess.run([*command, str(source), "-o", str(code)], check=True)
        return code.stat().st_size


def compile_launch(capability: int, dtype: torch.dtype, others: Sequence[int]) -> Any:
    """What stands in for ``JITFunction.run``: a compilation that prints what came of it.

    The ``others`` are GPUs for which its PTX is assembled.
    """
    seen: set[str] = set()
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.tools.tensor_descriptor import TensorDescriptor

    names = {
        torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32",
        torch.int32: "*i32", float: "fp32", int: "i32",
    }  # fmt: skip

    def run(fn: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        given = {**dict(zip(fn.arg_names, args, strict=False)), **kwargs}
        options = {k: v for k, v in given.items() if k not in fn.arg_names}
        signature, constants, aligned = {}, {}, {}
        for i, parameter in enumerate(fn.params):
            value = given[parameter.name]
            if parameter.is_constexpr or value is None:
                signature[parameter.name], constants[(i,)] = "constexpr", value
                continue
            if isinstance(value, TensorDescriptor):
                kind = names[value.base.dtype][1:]
                signature[parameter.name] = f"tensordesc<{kind}{value.block_shape}>"
                continue
            is_tensor = isinstance(value, torch.Tensor)
            signature[parameter.name] = names[value.dtype if is_tensor else type(value)]
            if is_tensor or (not parameter.do_not_specialize and value % 16 == 0):
                aligned[(i,)] = [["tt.divisibility", 16]]
        built = triton.compile(
            ASTSource(fn=fn, signature=signature, constexprs=constants, attrs=aligned),
            target=GPUTarget("cuda", capability, 32),
            options=options,
        )
        # A kernel that starts early and does not wait would be a race.
        waits = int("griddepcontrol.wait" in built.asm["ptx"])
        assert waits == built.metadata.launch_pdl
        size = len(built.asm["cubin"])
        print(capability, fn.__name__, dtype, built.metadata.shared, size, waits)
        if built.hash not in seen and dtype != torch.float32:
            seen.add(built.hash)
            for other in others:
                size = assembled(built.asm["ptx"], other)
                print(other, fn.__name__, dtype, built.metadata.shared, size, waits)

    return run


def launch_all(dtype: torch.dtype) -> None:
    from packhorse.kernels import (
        attention,
        disentangled,
        embedding,
        few_rows,
        gated,
        head,
        layer_norm,
        layout,
        mlp,
        pooling,
        rotary,
        tiles,
    )  # fmt: skip
    from packhorse.kernels.reference import PositionVectors

    heads, size, tokens = 12, 64, 64
    width = heads * size
    ids = torch.zeros(tokens, dtype=torch.int32)
    states, vector = torch.zeros(tokens, width, dtype=dtype), torch.zeros(width, dtype=dtype)
    bounds, one = torch.zeros(5, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    attention.packed_attention(torch.zeros(tokens, 3 * width, dtype=dtype), ids, ids, heads)
    if dtype == torch.float32:
        return
    qkv = torch.zeros(tokens, 3 * width, dtype=dtype)
    attention.packed_attention(qkv, ids, ids, heads, window=64)
    attention.cls_attention(states[:4], qkv[:, width:], bounds, heads, window=64)
    table = torch.zeros(512, width, dtype=dtype)
    vectors = PositionVectors(table, table, torch.zeros(1023, dtype=torch.int32))
    scores = disentangled.position_scores(qkv, ids, ids, heads, vectors, 0.1)
    attention.packed_attention(qkv, ids, ids, heads, positions=scores, scale=0.1)
    attention.cls_attention(states[:4], qkv[:, width:], bounds, heads, vectors=vectors, scale=0.1)
    rotary.rotate(qkv, ids, states[:, :32].float(), states[:, :32].float(), 2 * heads)
    gated.gate(qkv[:, : 2 * width], "gelu")
    wide = torch.zeros(2304, width, dtype=dtype)
    gated.linear_gated(torch.zeros(300, width, dtype=dtype), wide, None, "gelu")
    layer_norm.add_layer_norm(states, states, vector, vector, 1e-5)
    attention.cls_attention(states[:4], torch.zeros(tokens, 2 * width, dtype=dtype), bounds, heads)
    layer_norm.residual_layer_norm(states, vector, states, vector, vector, 1e-12)
    mlp.bias_activation(states, vector, "gelu")
    square = torch.zeros(width, width, dtype=dtype)
    for rows in (1, 30, 64, 200, 12000):
        x = torch.zeros(rows, width, dtype=dtype)
        mlp.linear_activation(x, square, vector, "gelu")
        if tiles.few_rows("norm", dtype, rows, width, width, tiles.generation(x.device)):
            few_rows.linear(x, square, vector)
            few_rows.linear_residual_norm(x, square, vector, x, vector, vector, 1e-12)
    for x in (states, states[:1], vector[None].float()):
        head.head_layer(x, square.float(), vector.float(), "tanh")
    layout.expand(bounds, one, tokens)
    layout.expand(bounds, one, tokens, segment_starts=ids[:4])
    embedding.embedding_layer_norm(ids, ids, ids, states, states, states, vector, vector, 1e-12)
    pooling.first_token_pool(states, bounds)
    for mode in pooling.MODES:
        pooling.pool(states, bounds, mode)


def main() -> None:
    import triton

    from packhorse.kernels import tiles

    shared = ONE_BINARY if "--slice" in sys.argv else {}
    skipped = {other for others in shared.values() for other in others}
    for capability in sorted(set(CAPABILITIES) - skipped):
        tiles.generation = lambda device, capability=capability: capability // 10
        tiles.overlaps = lambda device, capability=capability: capability in OVERLAPPING
        for dtype in (torch.float16, torch.float32):
            triton.runtime.jit.JITFunction.run = compile_launch(
                capability, dtype, shared.get(capability, ())
            )
            if dtype == torch.float16 or capability in FLOAT32_TOO:
                launch_all(dtype)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
    main()
