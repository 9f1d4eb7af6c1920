"""The house's rules that a machine can check."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

LONGEST = 420
"""A file near 400 lines holds two nouns."""


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        check=True,
        capture_output=True,
        text=True,
    )
    return [Path(line) for line in listed.stdout.splitlines() if Path(line).exists()]


SOURCES = tracked("src/*.py")


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_a_source_file_is_short_and_says_what_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), f"{path} has no docstring"


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_public_definitions_have_docstrings(path: Path) -> None:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            jitted = any("jit" in ast.unparse(d) for d in node.decorator_list)
            if not node.name.startswith("_") and not jitted:
                assert ast.get_docstring(node), f"{path}: {node.name} has no docstring"


def test_no_room_is_called_after_nothing() -> None:
    for path in SOURCES:
        for word in ("util", "helper", "manager", "misc", "common"):
            assert word not in path.stem, path


def test_no_weights_but_the_demo_models() -> None:
    kinds = (".safetensors", ".bin", ".pt", ".onnx")
    weights = [path for path in tracked() if path.suffix in kinds]
    assert weights == [Path("src/packhorse/demo_model/model.safetensors")]


def test_every_kernel_has_a_twin() -> None:
    def public(path: Path) -> set[str]:
        body = ast.parse(path.read_text(encoding="utf-8")).body
        return {
            node.name
            for node in body
            if isinstance(node, ast.FunctionDef)
            and not node.name.startswith("_")
            and not any("jit" in ast.unparse(d) for d in node.decorator_list)
        }

    kernels = Path("src/packhorse/kernels")
    no_operations = {"__init__", "reference", "reference_attention", "tiles", "wide_product"}
    twins = public(kernels / "reference.py") | public(kernels / "reference_attention.py")
    for path in kernels.glob("*.py"):
        if path.stem not in no_operations:
            assert public(path) <= twins, path


def test_make_asks_the_index_that_it_is_told_to() -> None:
    def said(*words: str) -> str:
        command = ["make", "--dry-run", "--always-make", "serve", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    index = "https://example.invalid/whl"
    assert f"'torch==2.13.0' --index-url '{index}'" in said(f"TORCH_INDEX={index}")
    assert "--index-url" not in said("TORCH_INDEX=")
