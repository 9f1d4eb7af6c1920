"""One fault on a GPU: a narrow, deep model whose kernels end before the next is launched."""

import torch
from small_model import Classifier, batches, ids_of

model = Classifier(64, 48).eval().half().cuda()


@torch.inference_mode()
def predict(texts: list[str]) -> list[float]:
    encoded = [ids_of(batch) for batch in batches(texts)]
    logits = [model(**{name: t.cuda() for name, t in each.items()}) for each in encoded]
    return torch.softmax(torch.cat(logits).float(), -1)[:, 1].tolist()
