"""The tasks that a model can be loaded for: one, decided when it is loaded."""

from __future__ import annotations

from enum import StrEnum


class Task(StrEnum):
    """What a model gives for a text.

    A model is loaded for one task. ``RERANK`` is a classifier with a single
    label: everything that a classifier does it does too.
    """

    CLASSIFY = "classify"  # a score for each label
    RERANK = "rerank"  # one score for a pair of query and document
    TOKEN_CLASSIFY = "token_classify"  # a score for each label, for every token
    EMBED = "embed"  # a vector
    EMBED_SPARSE = "embed_sparse"  # weights of words of the vocabulary, most of them 0
    FILL_MASK = "fill_mask"  # the likeliest tokens in the place of a mask

    @property
    def is_classifier(self) -> bool:
        """Whether there is a score for each label of each text."""
        return self in (Task.CLASSIFY, Task.RERANK)

    @property
    def reads_vocabulary(self) -> bool:
        """Whether the head of a masked language model is read: a logit for each of its tokens."""
        return self in (Task.EMBED_SPARSE, Task.FILL_MASK)


DOES = {
    Task.CLASSIFY: "classifies texts",
    Task.RERANK: "scores pairs of texts",
    Task.TOKEN_CLASSIFY: "classifies tokens",
    Task.EMBED: "embeds texts",
    Task.EMBED_SPARSE: "embeds texts sparsely",
    Task.FILL_MASK: "fills masks",
}
"""In a sentence about the model."""
