"""Imports point one way: ground, then two towers that never see each other, then the roof."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path("src")

# A name stands for the module and everything below it. The first that fits decides.
FLOORS = {
    "packhorse.tools": "roof",
    "packhorse.cli": "roof",
    "packhorse.encoder": "roof",
    "packhorse.async_encoder": "roof",
    "packhorse.loaded": "roof",
    "packhorse.verbs": "roof",
    "packhorse.embedding": "roof",
    "packhorse.supervisor": "roof",
    "packhorse.suspects": "roof",
    "packhorse.generation": "roof",
    "packhorse.reloading": "roof",
    "packhorse.server": "front tower",
    "packhorse.tokenizing": "front tower",
    "packhorse.postprocess": "front tower",
    "packhorse.entities": "front tower",
    "packhorse.vectors": "front tower",
    "packhorse.zero_shot": "front tower",
    "packhorse.engine": "engine tower",
    "packhorse.models": "engine tower",
    "packhorse.kernels": "engine tower",
    "packhorse.channel": "wall",
    "packhorse.launch": "wall",
    "packhorse.child": "wall",
    "packhorse.metrics": "wall",
    "packhorse": "ground",
}
MAY_SEE = {
    "ground": {"ground"},
    "wall": {"ground", "wall"},
    "front tower": {"ground", "wall", "front tower"},
    "engine tower": {"ground", "wall", "engine tower"},
    "roof": {"ground", "wall", "front tower", "engine tower", "roof"},
}
HTTP = ("starlette", "uvicorn", "httptools", "uvloop", "anyio", "h11", "httpx")


def modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in SOURCE.rglob("*.py")
    }


def floor_of(module: str) -> str:
    for prefix, floor in FLOORS.items():
        if module == prefix or module.startswith(prefix + "."):
            return floor
    raise AssertionError(f"{module} stands on no floor")


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("module", sorted(modules()))
def test_a_module_sees_only_what_it_may(module: str) -> None:
    floor = floor_of(module)
    if module == "packhorse":  # names the library's classes, imported when they are asked for
        return
    for imported in imports_of(modules()[module]):
        if imported.split(".")[0] == "packhorse":
            assert floor_of(imported) in MAY_SEE[floor], f"{module} imports {imported}"
        if floor == "engine tower":
            assert imported.split(".")[0] not in HTTP, f"{module} imports {imported}"


SCRIPTS = sorted(
    path for folder in ("benchmarks", "scripts", "examples") for path in Path(folder).rglob("*.py")
)


@pytest.mark.parametrize("path", SCRIPTS, ids=str)
def test_what_a_script_takes_from_the_package_is_there(path: Path) -> None:
    """They are run by hand and now and then: a name that was changed would go unnoticed."""
    for imported in imports_of(path):
        if imported.split(".")[0] != "packhorse":
            continue
        module, _, name = imported.rpartition(".")
        if not hasattr(importlib.import_module(module or imported), name):
            importlib.import_module(imported)


def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    names = done.stdout.split()
    return {*names, *(name.split(".")[0] for name in names)}


MAY_NOT_IMPORT = {
    "packhorse.server.process": {"torch", "transformers", "triton", "huggingface_hub"},
    "packhorse.supervisor": {
        "torch",
        "transformers",
        "triton",
        "tokenizers",
        "starlette",
        "uvicorn",
    },
    "packhorse.cli": {"torch", "transformers", "triton"},
    "packhorse.engine.process": {*HTTP, "http.server", "torch"},
}


@pytest.mark.parametrize("module", MAY_NOT_IMPORT)
def test_a_process_starts_without_what_it_does_not_need(module: str) -> None:
    assert not modules_after(f"import {module}") & MAY_NOT_IMPORT[module]


def test_kernels_for_a_cpu_need_no_triton() -> None:
    assert "triton" not in modules_after("import packhorse.kernels as k; k.select('cpu')")
