"""The families' bench: FLOPs counted pair by pair, and checkpoints that Transformers loads too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from packhorse import Encoder
from packhorse.checkpoint import load_checkpoint
from packhorse.positions import RotaryPositions
from packhorse.tools.bench import family_checkpoints
from packhorse.tools.bench.gpu.families import FamilyRow, nominal_flops, report_families
from packhorse.tools.bench.programs import Place, builder
from packhorse.tools.bench.random_checkpoint import model_folder

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}


@pytest.fixture(params=family_checkpoints.CONFIGS)
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The checkpoint of a family, with the vocabulary it has and little else."""
    small = family_checkpoints.CONFIGS[request.param] | SMALL
    monkeypatch.setitem(family_checkpoints.CONFIGS, request.param, small)
    return model_folder(request.param, tmp_path)[0]


def test_transformers_and_the_engine_agree_on_it(folder: Path) -> None:
    texts = ["a good film", "terrible, and far too long"]
    theirs = builder("sorted")(Place(str(folder), "cpu", "float32", 1), ()).predict(texts)
    with Encoder(folder, device="cpu", dtype="float32") as encoder:
        assert np.abs(encoder.predict_proba(texts) - theirs).max() < 1e-5


def test_operations_are_those_of_each_pair(folder: Path) -> None:
    shape = load_checkpoint(folder).architecture
    lengths = np.array([1, 7, 40], np.int32)
    windows: tuple[int | None, ...] = (None,) * 3
    mlp, tables = 2, 2
    if isinstance(shape.positions, RotaryPositions):
        windows, mlp, tables = (None, 5, 5), 3, 0
        shape = replace(shape, positions=replace(shape.positions, windows=windows))
    wanted = 0
    for n in lengths.tolist():
        for window in windows:
            wanted += 2 * n * (4 * 32 * 32 + mlp * 32 * 48)
            seen = [
                abs(i - j) <= (n if window is None else window) for i in range(n) for j in range(n)
            ]
            wanted += 4 * 32 * sum(seen) + 2 * n * 32 * n * tables
    assert nominal_flops(shape, lengths) == wanted


def test_the_table_compares_with_its_first_row() -> None:
    rows = [
        FamilyRow("a", "", 1e6, 0.5, 1e6, 0.6, 900, 300),
        FamilyRow("b", "", 1, 0.5, 1, 0.3, 9, 3),
    ]
    last = report_families(rows).splitlines()[-1].split()
    assert last == ["b", "1", "50.0%", "1", "30.0%", "0.50", "9", "3", "3.0"]
