"""`packhorse doctor` on a GPU: each planted fault is named, and no other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse.tools.bench.random_checkpoint import SHAPES, write
from packhorse.tools.doctor import device_memory, examinee
from packhorse.tools.doctor.diagnosis import diagnosis
from packhorse.tools.doctor.findings import Examination
from packhorse.tools.doctor.sample_texts import our_texts
from packhorse.tools.doctor.script import AUTO, Place, Program, load

SCRIPTS = Path(__file__).parents[1] / "doctor_scripts"

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def undisturbed() -> Iterator[None]:
    """Paths and modules as they were."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in {path.stem for path in SCRIPTS.glob("*.py")} - modules:
        sys.modules.pop(name, None)


def examined(script: str) -> Examination:
    place = Place(SCRIPTS / script, "predict")
    found = examinee.examine(place, Program.of(load(place), AUTO), our_texts(), seconds=1.0)
    print(diagnosis(found))
    return found


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ("gpu_healthy.py", None),
        ("gpu_blocking_copies.py", "blocking-copies"),
        ("gpu_launch_bound.py", "launch-overhead"),
        ("gpu_float32.py", "fp32"),
    ],
)
def test_a_planted_fault_is_named_and_no_other(script: str, fault: str | None) -> None:
    found = examined(script)
    assert [each.id for each in found.findings] == ([fault] if fault else [])
    assert all(each.figure > 0 for each in found.findings)


def test_the_naive_program_has_all_the_faults_that_the_guide_teaches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    write(SHAPES["bert-base"], tmp_path / "model")
    monkeypatch.setenv("MODEL", str(tmp_path / "model"))
    assert {each.id for each in examined("naive.py").findings} == {
        "single-text-batches",
        "fixed-padding",
        "fp32",
        "blocking-copies",
        "launch-overhead",
    }


def test_segments_that_every_call_asks_for_are_named_with_their_cost() -> None:
    import torch

    device = torch.device("cuda")
    kept = torch.ones(1000, 1000, device=device)

    def calm() -> None:
        kept @ kept

    def asking() -> None:
        torch.empty(300 << 20, dtype=torch.uint8, device=device)
        torch.cuda.empty_cache()

    found, seen = device_memory.examine(calm, 4, 1000.0, device)
    assert found is None, seen
    found, seen = device_memory.examine(asking, 4, 1000.0, device)
    assert found is not None
    assert found.id == "fragmentation"
    assert found.costs > 0
    assert seen["device_segments_a_call"] >= 1


def test_this_engine_has_none_of_them() -> None:
    found = examined("engine.py")
    sys.modules["engine"].encoder.close()
    assert not found.findings
