"""A service as a newcomer writes it: FastAPI, one text at a time, float32, padded to 128."""

from __future__ import annotations

import os

import torch
import uvicorn
from classifier import labelled, port, print_versions
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import AutoModelForSequenceClassification, AutoTokenizer

FOLDER = os.environ["RIVAL_MODEL"]

app = FastAPI()
tokenizer = AutoTokenizer.from_pretrained(FOLDER)
model = AutoModelForSequenceClassification.from_pretrained(FOLDER)
model.eval()


class Request(BaseModel):
    inputs: str


@app.post("/predict")
def predict(request: Request) -> list[dict[str, float | str]]:
    encoding = tokenizer(
        request.inputs, padding="max_length", max_length=128, truncation=True, return_tensors="pt"
    )
    with torch.no_grad():
        scores = torch.softmax(model(**encoding).logits, dim=-1)[0].tolist()
    return labelled(scores, model.config.id2label)


if __name__ == "__main__":
    print_versions("fastapi", "uvicorn")
    uvicorn.run(app, port=port(), log_level="warning")
