"""One fault: the logits of every call are kept for ever."""

import torch
from small_model import Classifier, batches, ids_of

model = Classifier().eval()
history = []


@torch.inference_mode()
def predict(texts: list[str]) -> list[float]:
    logits = torch.cat([model(**ids_of(batch)) for batch in batches(texts)])
    history.append(logits)
    return torch.softmax(logits, -1)[:, 1].tolist()
