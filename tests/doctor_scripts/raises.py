"""A program that fails."""


def predict(texts: list[str]) -> list[float]:
    raise KeyError("label")
