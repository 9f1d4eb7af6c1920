"""One fault on a GPU: float32."""

import torch
from small_model import Classifier, batches, ids_of

model = Classifier(4096, 4).eval().cuda()


@torch.inference_mode()
def predict(texts: list[str]) -> list[float]:
    encoded = [ids_of(batch) for batch in batches(texts, 32)]
    logits = [model(**{name: t.cuda() for name, t in each.items()}) for each in encoded]
    return torch.softmax(torch.cat(logits), -1)[:, 1].tolist()
