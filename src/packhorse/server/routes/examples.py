"""A body for each route that asks the model, for the OpenAPI document: tests send them all."""

from __future__ import annotations

from typing import Any

_VECTOR = {"input": "a good film", "model": "any", "encoding_format": "float"}
_PAIRS = {"text_1": "how tall is it?", "text_2": ["It is 300 m tall.", "It rained."]}
_DOCUMENTS = {"query": "how tall is it?", "documents": ["It is 300 m tall.", "It rained."]}

EXAMPLES: dict[str, dict[str, Any]] = {
    "/predict": {"inputs": [["This product is amazing and I love it!"], ["Terrible service."]]},
    "/embed": {"inputs": ["a good film", "a bad one"]},
    "/embed_all": {"inputs": "a good film"},
    "/embed_sparse": {"inputs": ["a good film"]},
    "/similarity": {"inputs": {"source_sentence": "a good film", "sentences": ["I liked it"]}},
    "/rerank": {"query": "how tall is it?", "texts": ["It is 300 m tall.", "It rained."]},
    "/tokenize": {"inputs": "good"},
    "/decode": {"ids": [2, 7, 3]},
    "/v1/embeddings": _VECTOR,
    "/embeddings": _VECTOR,
    "/v1/rerank": _DOCUMENTS | {"top_n": 1},
    "/v2/rerank": _DOCUMENTS | {"top_n": 1},
    "/classify": {"input": ["a good film"]},
    "/pooling": {"input": ["a good film"]},
    "/score": _PAIRS,
    "/v1/score": _PAIRS,
    "/v1/token_classify": {
        "inputs": "Ada Lovelace lived in London.",
        "aggregation_strategy": "first",
    },
    "/v1/fill_mask": {"inputs": "The film was [MASK].", "top_k": 3},
    "/v1/zero_shot": {"inputs": "The band played all night.", "labels": ["music", "war"]},
}
