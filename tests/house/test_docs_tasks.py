"""Examples of tasks run with a small model in place of the one that they name."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import tiny_checkpoints
from tests.e2e.service import Service
from tests.house.test_docs import _RUNNER, BLOCKS, SAMPLES, Block, curl, shape
from tests.models.test_sentence import pooling
from tests.unit.test_rerank import inference_model

TASKS = ("embed", "embed_sparse", "token_classify", "rerank", "zero_shot", "fill_mask")
MODEL = re.compile(r"\b[\w-]+/[\w.-]*(?:MiniLM|bert|NER|roberta|splade)[\w.-]*")
"""Names of models on the hub."""


def make(task: str, folder: Path) -> Path:
    if task == "embed":
        tiny_checkpoints.make_bert(folder, head="Model", num_labels=None, hidden_size=384)
        return tiny_checkpoints.add_modules(folder, pooling("mean_tokens", width=384))
    if task in ("embed_sparse", "fill_mask"):
        return tiny_checkpoints.make_bert(folder, head="ForMaskedLM", num_labels=None)
    if task == "token_classify":
        return tiny_checkpoints.make_bert(folder, head="ForTokenClassification", num_labels=5)
    if task == "rerank":
        return tiny_checkpoints.make_bert(folder, num_labels=1)
    return inference_model(folder)


def task_of(task: str) -> str:
    """The setting."""
    return "classify" if task == "zero_shot" else task


def of_task(task: str) -> list[Block]:
    """Translations repeat blocks, so each text counts once."""
    return list({b.text: b for b in reversed(BLOCKS) if b.task == task}.values())


def test_every_example_with_a_small_model_is_of_a_task_that_is_run() -> None:
    assert {block.task for block in BLOCKS} == {None, *TASKS}
    assert all({"python", "bash"} == {block.language for block in of_task(task)} for task in TASKS)


@pytest.fixture(params=TASKS)
def task(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(task: str, tmp_path: Path) -> Path:
    return make(task, tmp_path / "model")


@pytest.fixture
def url(task: str, folder: Path) -> Iterator[str]:
    service = Service(real=True, model_id=folder, task=task_of(task), device="cpu", front_ends=1)
    try:
        yield service.start().url
    finally:
        service.close()


@pytest.mark.long
def test_the_examples_of_a_task_run(task: str, folder: Path, url: str, tmp_path: Path) -> None:
    for name, text in SAMPLES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    pieces, requests = [], []
    for block in of_task(task):
        if block.language == "python":
            pieces.append(("python", block.where, MODEL.sub(str(folder), block.text)))
            continue
        for line in block.commands:
            if line.startswith("curl "):
                requests.append((block, line))
            elif not line.startswith("packhorse serve "):  # it serves already
                pieces.append(("packhorse", block.where, MODEL.sub(str(folder), line)))
    done = subprocess.run(
        [sys.executable, "-c", _RUNNER],
        input=json.dumps(pieces),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=220,
    )
    assert done.returncode == 0, done.stderr
    for where, text, _, fault in json.loads(done.stdout):
        assert fault is None, f"{where}: {text}\n{fault}\n{done.stderr}"
    for block, line in requests:
        status, answer = curl(line, url)
        assert status == 200, f"{block.where}: {line}\n{answer}"
        if block.answer is not None:
            assert shape(json.loads(answer)) == shape(json.loads(block.answer)), block.where
