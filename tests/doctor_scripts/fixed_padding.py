"""One fault: every batch is padded to 128 tokens."""

import torch
from small_model import Classifier, batches, ids_of

model = Classifier().eval()


@torch.inference_mode()
def predict(texts: list[str]) -> list[float]:
    logits = torch.cat([model(**ids_of(batch, width=128)) for batch in batches(texts)])
    return torch.softmax(logits, -1)[:, 1].tolist()
