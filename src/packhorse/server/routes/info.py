"""GET /info: what is served, how and with which settings."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from packhorse import __version__
from packhorse.checkpoint import Checkpoint
from packhorse.config import as_dict
from packhorse.errors import UnavailableError
from packhorse.server.service import Service
from packhorse.tasks import Task


class Info(msgspec.Struct):
    """The keys of text-embeddings-inference first, then ours.

    model_type  one key, which says what the model does: its labels, or how it pools
    engine      what the engine says of itself: device, dtype, kernels, bounds of a batch, memory
    config      every setting as it was resolved, and so what is switched off
    """

    model_id: str
    model_sha: str | None
    model_dtype: str | None
    served_model_name: str
    model_type: dict[str, Any]
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int | None
    max_batch_requests: int | None
    max_client_batch_size: int
    auto_truncate: bool
    tokenization_workers: int
    version: str
    sha: str | None
    docker_label: str | None
    device: str | None
    task: str
    problem_type: str
    tokenizer: str
    tokenizer_reason: str | None
    engine: dict[str, Any]
    config: dict[str, Any]


async def info(request: Request) -> Response:
    """503 before an engine is ready."""
    return Response(
        msgspec.json.encode(_described(request.app.state.service)),
        media_type="application/json",
    )


def _described(service: Service) -> Info:
    engine = service.engines.info
    if engine is None:
        raise UnavailableError(service.engines.fault or "the engine is not ready yet")
    server = service.config.server
    return Info(
        model_id=service.checkpoint.model_id,
        model_sha=service.checkpoint.revision,
        model_dtype=engine.get("dtype"),
        served_model_name=service.name,
        model_type=_model_type(service.checkpoint),
        max_concurrent_requests=server.max_concurrent_requests,
        max_input_length=service.tokenizer.max_length,
        max_batch_tokens=engine.get("max_batch_tokens"),
        max_batch_requests=engine.get("max_batch_requests"),
        max_client_batch_size=server.max_client_batch_size,
        auto_truncate=server.auto_truncate,
        tokenization_workers=server.tokenization_workers,
        version=__version__,
        sha=None,
        docker_label=None,
        device=engine.get("device"),
        task=service.checkpoint.task,
        problem_type=service.checkpoint.problem_type,
        tokenizer=service.tokenizer.backend,
        tokenizer_reason=service.tokenizer.backend_reason,
        engine=engine,
        config=as_dict(service.config),
    )


def _model_type(checkpoint: Checkpoint) -> dict[str, Any]:
    """In the words of text-embeddings-inference, with one more for token classifiers."""
    if checkpoint.sentence is not None:
        pooling = "+".join(checkpoint.sentence.poolings)
        return {"embedding": {"pooling": pooling, "dimensions": checkpoint.width}}
    kinds = {Task.RERANK: "reranker", Task.TOKEN_CLASSIFY: "token_classifier"}
    return {
        kinds.get(checkpoint.task, "classifier"): {
            "id2label": {str(row): label for row, label in enumerate(checkpoint.labels)},
            "label2id": {label: row for row, label in enumerate(checkpoint.labels)},
        }
    }
