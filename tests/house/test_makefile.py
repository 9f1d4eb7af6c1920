"""What people may tell make."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["TORCH_INDEX=https://example.com/cpu"], " --index-url 'https://example.com/cpu'"),
        ([], ""),
    ],
)
def test_pytorch_comes_from_where_it_is_told(words: list[str], option: str) -> None:
    command = ["make", "--dry-run", "--always-make", ".venv/.torch", "TORCH=torch", *words]
    said = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    (line,) = [line.rstrip() for line in said.stdout.splitlines() if "pip install" in line]
    assert line == f".venv/bin/pip install --quiet 'torch'{option}"
