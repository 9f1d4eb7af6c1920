"""What the documentation of Transformers shows, in a loop; MODEL is a folder."""

import os

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
tokenizer = AutoTokenizer.from_pretrained(os.environ["MODEL"])
model = AutoModelForSequenceClassification.from_pretrained(os.environ["MODEL"], dtype=torch.float32)
model.to(device).eval()


def predict(texts: list[str]) -> list[float]:
    return [predict_one(text) for text in texts]


def predict_one(text: str) -> float:
    encoding = tokenizer(
        text, padding="max_length", max_length=128, truncation=True, return_tensors="pt"
    )
    encoding = {name: tensor.to(device) for name, tensor in encoding.items()}
    with torch.no_grad():
        logits = model(**encoding).logits
    return float(torch.softmax(logits, dim=-1).cpu().numpy()[0][1])
