"""mosec with dynamic batching: at most 32 texts, and at most 5 ms of waiting for more."""

from __future__ import annotations

import json
import sys
from typing import Any

from classifier import Classifier, port, print_versions
from mosec import Server, Worker

MOST, WAIT_MS = 32, 5


class Predict(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.classifier = Classifier()

    def deserialize(self, data: bytes) -> str:
        return json.loads(data)["inputs"]

    def forward(self, data: list[str]) -> list[Any]:
        return self.classifier.predict(data)


if __name__ == "__main__":
    print_versions("mosec")
    sys.argv[1:] = ["--port", str(port()), "--timeout", "30000", "--log-level", "warning"]
    server = Server()
    server.append_worker(Predict, num=1, max_batch_size=MOST, max_wait_time=WAIT_MS)
    server.run()
