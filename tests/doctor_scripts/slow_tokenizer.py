"""One fault: a tokenizer in Python that tries every piece of every word against its vocabulary."""

import torch
from small_model import Classifier, batches

model = Classifier().eval()
vocabulary = {chr(c): c for c in range(32, 127)} | {"th": 128, "er": 129, "ing": 130, "tion": 131}


def tokenize(text: str) -> list[int]:
    ids, start = [], 0
    while start < len(text):
        for end in range(len(text), start, -1):
            if text[start:end] in vocabulary or end == start + 1:
                ids.append(vocabulary.get(text[start:end], 1))
                start = end
                break
    return ids[:8]


@torch.inference_mode()
def predict(texts: list[str]) -> list[float]:
    logits = []
    for batch in batches(texts):
        rows = [tokenize(text) for text in batch]
        width = max(map(len, rows))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        logits.append(model(ids, (ids != 0).long()))
    return torch.softmax(torch.cat(logits), -1)[:, 1].tolist()
