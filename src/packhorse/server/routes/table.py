"""Which path is answered by which of the routes that ask the model."""

from __future__ import annotations

from packhorse.server.model_route import ModelRoute
from packhorse.server.routes.embed import Embed, EmbedAll, EmbedSparse, Similarity
from packhorse.server.routes.fill_mask import FillMask
from packhorse.server.routes.openai import Embeddings
from packhorse.server.routes.pipelines import (
    ClassifyPipeline,
    FillMaskPipeline,
    TokenClassifyPipeline,
)
from packhorse.server.routes.pooling import Pooling
from packhorse.server.routes.predict import Predict
from packhorse.server.routes.rerank import Rerank, RerankDocuments
from packhorse.server.routes.token_classify import TokenClassify
from packhorse.server.routes.tokenize import Decode, Tokenize
from packhorse.server.routes.vllm import Classify, Score
from packhorse.server.routes.zero_shot import ZeroShot
from packhorse.server.service import Service
from packhorse.tasks import Task

PATHS: dict[str, type[ModelRoute]] = {
    "/predict": Predict,
    "/embed": Embed,
    "/embed_all": EmbedAll,
    "/embed_sparse": EmbedSparse,
    "/similarity": Similarity,
    "/rerank": Rerank,
    "/tokenize": Tokenize,
    "/decode": Decode,
    "/v1/embeddings": Embeddings,
    "/embeddings": Embeddings,
    "/v1/rerank": RerankDocuments,
    "/v2/rerank": RerankDocuments,
    "/classify": Classify,
    "/pooling": Pooling,
    "/score": Score,
    "/v1/score": Score,
    "/v1/token_classify": TokenClassify,
    "/v1/zero_shot": ZeroShot,
    "/v1/fill_mask": FillMask,
}


OWN_PATHS = {
    Task.EMBED: "/embed",
    Task.EMBED_SPARSE: "/embed_sparse",
    Task.RERANK: "/rerank",
    Task.TOKEN_CLASSIFY: "/v1/token_classify",
    Task.FILL_MASK: "/v1/fill_mask",
}
"""What POST / and /invocations are for a model's task; for others /predict."""


PIPELINES: dict[Task, type[ModelRoute]] = {
    Task.CLASSIFY: ClassifyPipeline,
    Task.RERANK: ClassifyPipeline,
    Task.TOKEN_CLASSIFY: TokenClassifyPipeline,
    Task.FILL_MASK: FillMaskPipeline,
    Task.EMBED: Similarity,
}
"""What the same paths are for a body with ``parameters``, as the hub's clients send it."""


def model_routes(service: Service) -> dict[str, ModelRoute]:
    """A route for each path; paths of one class share it."""
    made = {kind: kind(service) for kind in dict.fromkeys(PATHS.values())}
    return {path: made[kind] for path, kind in PATHS.items()}
