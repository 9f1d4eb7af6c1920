"""The OpenAPI document beside running servers: what it says is what they do, for every task."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from packhorse.server.routes.docs import assets
from packhorse.server.routes.openapi import SHOWN, document
from packhorse.server.routes.table import PATHS
from packhorse.tasks import Task
from tests import tiny_checkpoints
from tests.e2e.service import Service
from tests.models.test_sentence import pooling
from tests.unit.test_rerank import inference_model

pytestmark = pytest.mark.long

ROUTES = PATHS

OURS = "not_a_server_error,status_code_conformance,content_type_conformance"
OURS += ",response_headers_conformance,response_schema_conformance,negative_data_rejection"
"""What schemathesis checks. That valid data is accepted is not among it: a document says nothing of
most inputs that are too many, of a stride above the model's length or of ids that there are not."""


def folder_for(task: Task, folder: Path) -> Path:
    """A small model; the classifier is one of inference, so that it does zero-shot too."""
    if task is Task.EMBED:
        tiny_checkpoints.make_bert(folder, head="Model", num_labels=None)
        return tiny_checkpoints.add_modules(folder, pooling("mean_tokens"))
    if task in (Task.EMBED_SPARSE, Task.FILL_MASK):
        return tiny_checkpoints.make_bert(folder, head="ForMaskedLM", num_labels=None)
    if task is Task.TOKEN_CLASSIFY:
        return tiny_checkpoints.make_bert(folder, head="ForTokenClassification", num_labels=5)
    if task is Task.RERANK:
        return tiny_checkpoints.make_bert(folder, num_labels=1)
    return inference_model(folder)


@pytest.fixture(scope="module", params=list(Task), ids=lambda task: task.value)
def task(request: pytest.FixtureRequest) -> Task:
    return Task(request.param)


@pytest.fixture(scope="module")
def service(task: Task, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = folder_for(task, tmp_path_factory.mktemp("model") / "m")
    service = Service(real=True, model_id=folder, task=task.value, device="cpu", front_ends=1)
    try:
        yield service.start()
    finally:
        service.close()


def paths_of(task: Task) -> list[str]:
    """Of the routes that a model of this task answers, and those that any does."""
    return [path for path, kind in ROUTES.items() if task in kind.tasks]


def test_every_example_is_answered_as_the_document_says(service: Service, task: Task) -> None:
    described = httpx.get(service.url + "/openapi.json").json()
    assert described == json.loads(json.dumps(document(task)))
    for path in ["/", "/invocations", *paths_of(task)]:
        content = described["paths"][path]["post"]["requestBody"]["content"]
        body = content["application/json"]["example"]
        answer = httpx.post(service.url + path, json=body, timeout=60)
        assert answer.status_code == 200, f"{path}: {answer.text}"
        if path in ROUTES:
            msgspec.json.decode(answer.content, type=ROUTES[path].answers)


def test_every_other_route_is_424_in_its_own_shape(service: Service, task: Task) -> None:
    for path in set(ROUTES) - set(paths_of(task)):
        body = document(task)["paths"][path]["post"]["requestBody"]["content"]
        answer = httpx.post(service.url + path, json=body["application/json"]["example"])
        assert answer.status_code == 424
        is_openai = isinstance(answer.json()["error"], dict)
        named = document(task)["paths"][path]["post"]["responses"]["4XX"]["content"]
        assert ("OpenAI" in named["application/json"]["schema"]["$ref"]) is is_openai


def test_what_is_shown_has_the_shape_of_its_class(service: Service) -> None:
    for path, shown in SHOWN.items():
        answer = httpx.get(service.url + path)
        if path == "/docs":
            continue
        assert answer.status_code == 200, path
        media = answer.headers.get("content-type", "").partition(";")[0]
        if not shown.answers:
            assert answer.content == b""
            continue
        assert media in shown.answers, path
        if media == "application/json":
            msgspec.json.decode(answer.content, type=shown.answers[media])


@pytest.mark.timeout(330)
@pytest.mark.skipif(find_spec("schemathesis") is None, reason="schemathesis is not installed")
def test_schemathesis_finds_nothing(
    service: Service, task: Task, tmp_path: Path, long_seconds: float
) -> None:
    """Requests of every kind that the document allows and does not allow, and their answers."""
    # Of the paths of one route the first.
    paths = ["/", *{ROUTES[path]: path for path in reversed(paths_of(task))}.values()]
    if task is Task.CLASSIFY:
        shown = [path for path in SHOWN if path != "/docs" or assets() is not None]
        paths = list(dict.fromkeys([*paths, *shown]))
    told = run_schemathesis(service.url, paths, tmp_path, round(long_seconds))
    print(told.stdout)
    assert told.returncode == 0, told.stdout[-6000:] + told.stderr[-2000:]
    generated = re.search(r"([\d,]+) generated, ([\d,]+) passed", told.stdout)
    assert generated is not None
    assert generated[1] == generated[2]
    assert int(generated[1].replace(",", "")) > 20, "it had no time to ask"
    assert service.get("/health").status_code == 200


def run_schemathesis(
    url: str, paths: list[str], folder: Path, seconds: int
) -> subprocess.CompletedProcess[str]:
    command: list[Any] = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"]
    command += ["--checks", OURS, "--seed", 1, "--no-shrink", "--no-color"]
    command += ["--request-timeout", 20, "--suppress-health-check", "all"]
    if seconds < 60:  # a slice: so short a budget would be spent before the first request
        command += ["--phases", "examples,fuzzing", "--max-examples", 5]
    else:
        command += ["--phases", "examples,coverage,fuzzing", "--max-examples", 50]
        command += ["--max-time", seconds]
    for path in paths:
        command += ["--include-path", path]
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=300,
        check=False,
    )
