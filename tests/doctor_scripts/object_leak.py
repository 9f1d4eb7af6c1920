"""One fault: a log of answers that nobody empties; no tensor is kept."""

import torch
from small_model import Classifier, batches, ids_of

model = Classifier().eval()
log = []


@torch.inference_mode()
def predict(texts: list[str]) -> list[float]:
    logits = torch.cat([model(**ids_of(batch)) for batch in batches(texts)])
    log.append("x" * 5000 + str(len(log)))
    return torch.softmax(logits, -1)[:, 1].tolist()
