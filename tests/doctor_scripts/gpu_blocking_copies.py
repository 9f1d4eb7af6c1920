"""One fault on a GPU: every score is copied back by itself."""

import torch
from gpu_healthy import passes


@torch.inference_mode()
def predict(texts: list[str]) -> list[float]:
    return [row[1].item() for logits in passes(texts) for row in torch.softmax(logits, -1)]
