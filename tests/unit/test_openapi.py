"""The OpenAPI document is whole, and says what the routes do."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from packhorse.server.routes import docs
from packhorse.server.routes.openapi import body_of, document
from packhorse.server.routes.table import PATHS
from packhorse.tasks import Task
from tests.unit.test_app import rig
from tests.unit.test_edge import KEYS


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(references(entry) for entry in value.values()))
    if isinstance(value, list):
        return set().union(*(references(entry) for entry in value))
    return set()


def test_every_path_is_described_and_every_reference_leads_somewhere() -> None:
    made = document()
    assert json.loads(json.dumps(made)) == made
    assert set(PATHS) | {"/predict", "/health", "/info"} <= set(made["paths"])
    schemas = made["components"]["schemas"]
    found = references(made["paths"]) | references(schemas)
    assert found == {f"#/components/schemas/{name}" for name in schemas}
    for path, operations in made["paths"].items():
        for operation in operations.values():
            assert operation["summary"], path


def test_what_a_route_needs_is_required() -> None:
    schemas = document()["components"]["schemas"]
    assert schemas["EmbeddingsRequest"]["required"] == ["input"]
    assert schemas["RerankRequest"]["required"] == ["query"]
    assert set(schemas["OpenAIErrorBody"]["properties"]) == {"error"}


def test_every_route_says_what_it_answers_and_shows_an_example() -> None:
    for task in Task:
        made = document(task)
        for path, operations in made["paths"].items():
            for method, operation in operations.items():
                assert {"200", "401", "4XX", "5XX"} <= set(operation["responses"]), path
                if method == "post":
                    content = operation["requestBody"]["content"]["application/json"]
                    kind = PATHS.get(path)
                    if kind is not None:
                        msgspec.convert(content["example"], body_of(kind))
                    assert operation["responses"]["200"]["content"]


def asked(path: str, **settings: Any) -> httpx.Response:
    async def ask() -> httpx.Response:
        async with rig(**settings) as r:
            return await r.client.get(path)

    return asyncio.run(ask())


def test_swagger_ui_is_served_from_the_files_of_a_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in docs.FILES:
        (tmp_path / name).write_text(f"/* {name} */")
    monkeypatch.setattr(docs, "assets", lambda: tmp_path)
    page = asked("/docs", api_key=KEYS)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "http" not in page.text.replace("<!doctype html>", "").replace("</html>", "")
    for name in re.findall(r'(?:src|href)="(docs/[^"]+)"', page.text):
        assert asked(f"/{name}").status_code == 200, name
    assert asked("/docs/secrets.txt").status_code == 404
    assert asked("/docs/..%2fsecrets").status_code == 404
    assert asked("/openapi.json", api_key=KEYS).status_code == 200


def test_without_the_package_there_is_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs, "assets", lambda: None)
    answer = asked("/docs")
    assert answer.status_code == 404
    assert "packhorse[swagger]" in answer.json()["error"]
    assert asked("/docs/swagger-ui.css").status_code == 404


@pytest.mark.skipif(find_spec("flask_swagger_ui") is None, reason="needs the extra swagger")
def test_the_package_has_the_files_and_is_not_imported() -> None:
    folder = docs.assets()
    assert folder is not None
    assert "SwaggerUIBundle" in (folder / docs.SCRIPT).read_text(encoding="utf-8")
    assert not {"flask_swagger_ui", "flask"} & set(sys.modules)
