"""Judge the demo model: its accuracy on held-out texts, and the size of its folder.

    python -m packhorse.tools.demo [REVIEWS] [--model FOLDER]

Counted are the held-out texts whose human score is at least 0.5 from neutral.
They are scored through the public ``Encoder``, so the figure covers what is
served: tokenizer, packing, kernels and head.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from packhorse.checkpoint import DEMO_MODEL
from packhorse.tools.demo_split import REVIEWS, Review, is_held_out, read_reviews


class Tally(NamedTuple):
    """How many texts were judged, and how many of them got the right label."""

    correct: int
    total: int

    @property
    def accuracy(self) -> float:
        return self.correct / self.total


def judged_reviews(path: Path = REVIEWS) -> list[Review]:
    """The held-out reviews that people found clearly positive or negative."""
    return [review for review in read_reviews(path) if review.is_clear and is_held_out(review.text)]


def predicted_labels(texts: Sequence[str], model: Path = DEMO_MODEL) -> list[int]:
    """The most probable label's index for each text."""
    from packhorse import Encoder  # loads torch: not before there is something to do

    with Encoder(str(model)) as encoder:
        probabilities = encoder.predict_proba(list(texts))  # (texts, labels)
    return [int(label) for label in probabilities.argmax(axis=1)]


def tally(reviews: Sequence[Review], predicted: Iterable[int]) -> dict[str, Tally]:
    """Right answers for all reviews (under ``overall``), then for each source."""
    total: Counter[str] = Counter()
    correct: Counter[str] = Counter()
    for review, label in zip(reviews, predicted, strict=True):
        for group in ("overall", review.source):
            total[group] += 1
            correct[group] += label == review.label
    groups = ["overall", *sorted(total.keys() - {"overall"})]
    return {group: Tally(correct[group], total[group]) for group in groups}


def folder_size(folder: Path) -> int:
    """Bytes of all files in a model folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def report(tallies: dict[str, Tally], size: int) -> str:
    """The figures as a small table."""
    lines = [
        f"{group:<15} {100 * entry.accuracy:5.1f}%  {entry.correct} of {entry.total}"
        for group, entry in tallies.items()
    ]
    return "\n".join([*lines, f"{'folder':<15} {size:,} bytes"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the accuracy on the held-out reviews, per source, and the folder's size."""
    parser = argparse.ArgumentParser(prog="python -m packhorse.tools.demo", description=__doc__)
    parser.add_argument("reviews", nargs="?", type=Path, default=REVIEWS)
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, metavar="FOLDER")
    options = parser.parse_args(arguments)
    if not options.reviews.is_file():
        parser.error(f"{options.reviews} is missing: run this in a checkout, or name the file")
    reviews = judged_reviews(options.reviews)
    if not reviews:
        parser.error(f"{options.reviews} holds no held-out text with a clear score")
    predicted = predicted_labels([review.text for review in reviews], options.model)
    print(report(tally(reviews, predicted), folder_size(options.model)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
