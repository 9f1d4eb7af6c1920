"""One fault: four times as many threads as there are cores."""

import torch
from small_model import Classifier, batches, ids_of

from packhorse.hardware import available_cpus

torch.set_num_threads(4 * available_cpus())
model = Classifier().eval()


@torch.inference_mode()
def predict(texts: list[str]) -> list[float]:
    logits = torch.cat([model(**ids_of(batch)) for batch in batches(texts)])
    return torch.softmax(logits, -1)[:, 1].tolist()
