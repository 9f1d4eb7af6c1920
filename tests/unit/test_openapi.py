"""The OpenAPI document is whole, and says what the routes do."""

from __future__ import annotations

import json
from typing import Any

from packhorse.server.routes.openapi import document
from packhorse.server.routes.table import PATHS


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
    assert schemas["RerankRequest"]["required"] == ["query", "texts"]
    assert set(schemas["OpenAIErrorBody"]["properties"]) == {"error"}
