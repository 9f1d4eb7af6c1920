"""LitServe with dynamic batching: at most 32 texts, and at most 5 ms of waiting for more."""

from __future__ import annotations

from typing import Any

import litserve
from classifier import Classifier, port, print_versions

MOST, WAIT_SECONDS = 32, 0.005


class Predict(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self.classifier = Classifier()

    # LitServe reads the annotation: with any but starlette's Request it expects a query parameter.
    def decode_request(self, request):  # type: ignore[no-untyped-def]
        return request["inputs"]

    def predict(self, texts: list[str]) -> list[Any]:
        return self.classifier.predict(texts)

    def encode_response(self, output: list[Any]) -> list[Any]:
        return output


if __name__ == "__main__":
    print_versions("litserve", "fastapi", "uvicorn")
    api = Predict(max_batch_size=MOST, batch_timeout=WAIT_SECONDS)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=30)
    server.run(host="127.0.0.1", port=port(), log_level="warning", generate_client_file=False)
