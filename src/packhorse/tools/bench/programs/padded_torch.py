"""Transformers on a CPU at its best, as it is, compiled, or compiled with frozen weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import AutoModelForSequenceClassification

from packhorse.request import Float32Array
from packhorse.tools.bench.programs import Place
from packhorse.tools.bench.programs.padded_batches import Batch, PaddedProgram


class PaddedTorch(PaddedProgram):
    """``how``: transformers, compile-padded or compile-frozen."""

    def __init__(self, place: Place, how: str) -> None:
        super().__init__(place)
        torch.set_num_threads(place.threads)
        model = AutoModelForSequenceClassification.from_pretrained(
            place.folder, dtype=getattr(torch, place.dtype), attn_implementation="sdpa"
        ).eval()
        self.forward = model
        if how == "compile-frozen":
            import torch._inductor.config as inductor

            inductor.freezing = True
        if how != "transformers":
            self.forward = torch.compile(model, dynamic=True)
        # Freezing takes place under no_grad alone.
        self.without_grad = torch.no_grad if how == "compile-frozen" else torch.inference_mode

    def run(self, batches: Sequence[Batch]) -> list[Float32Array]:
        with self.without_grad():
            return [self._logits(batch).float().numpy() for batch in batches]

    def _logits(self, batch: Batch) -> torch.Tensor:
        """(n, labels); a mask only where there is padding."""
        mask = torch.from_numpy(batch.mask) if batch.is_padded else None
        ids = torch.from_numpy(batch.ids)
        logits: torch.Tensor = self.forward(input_ids=ids, attention_mask=mask).logits
        return logits
