"""This engine."""

from packhorse import Encoder

encoder = Encoder(device="auto")


def predict(texts: list[str]) -> list[float]:
    return encoder.predict_proba(texts)[:, 1].tolist()
