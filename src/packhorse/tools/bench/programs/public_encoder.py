"""The top rung: the public ``Encoder``, as a user of the library calls it."""

from __future__ import annotations

from packhorse import Encoder
from packhorse.request import Float32Array, Int32Array
from packhorse.tools.bench.batch_plan import BatchPlan
from packhorse.tools.bench.flops import ModelSize
from packhorse.tools.bench.programs import Place


class PublicEncoder:
    """Everything on, nothing set but the place."""

    def __init__(self, place: Place) -> None:
        self.encoder = Encoder(place.folder, place.device, place.dtype, threads=place.threads)
        info = self.encoder.info
        self.dtype = str(info["dtype"])
        self.plan = BatchPlan(
            int(info["max_batch_tokens"]),
            int(info["max_batch_requests"]),
            graphs=info["kernels"] == "triton",
        )

    def predict(self, texts: list[str]) -> Float32Array:
        return self.encoder.predict_proba(texts)

    def logits(self, texts: list[str]) -> Float32Array:
        return self.encoder.logits(self.encoder.encode(texts))

    def executed_flops(self, size: ModelSize, lengths: Int32Array) -> int:
        """As if batches were filled in order; how they fall depends on when texts arrive."""
        return self.plan.executed_flops(size, lengths)

    def close(self) -> None:
        self.encoder.close()
