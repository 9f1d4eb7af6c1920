"""Faults that users of other servers met: each has a test that would see it here.

A test says which it covers with ``@pytest.mark.case(29)``; a number may have several tests.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

CASES = {
    # What goes in
    1: "an empty or blank text fails, or disturbs its neighbours",
    3: "control characters shift the spans of entities",
    5: "symbols and emoji vanish from the tokens",
    7: "the limit is max_position_embeddings, though positions start after the pad id",
    9: "every text is cut at 512 tokens, whatever the checkpoint's limit",
    11: "a long text is refused by its characters although it may be truncated",
    13: "only the start of a long text can be kept",
    15: "the length limit of a sentence-transformers folder is ignored",
    17: "segments are stale after truncation",
    19: "pairs are cut otherwise than by the reference, or refused",
    21: "a literal pad token does not stop RoBERTa's positions",
    23: "one token without an embedding ends the device",
    25: "a forked worker hangs in the tokenizer's thread pool",
    # What is loaded
    27: "a left-over buffer, or its absence, fails the load",
    29: "missing weights are filled with random numbers",
    31: "sharded weights are not found, or not missed",
    33: "labels that are not spelled out fail the load or lack names",
    35: "every activation is run as one kind",
    37: "MPNet is run as if it were BERT",
    39: "a ModernBERT classifier pools otherwise than its config says",
    41: "every family gets the same head",
    43: "DeBERTa fails checks that were made for BERT",
    # What comes out
    45: "one label alone goes through softmax and is always 1.0",
    47: "independent labels compete in a softmax",
    49: "a classifier gives logits for probabilities",
    51: "a pair is read as two texts",
    53: "the scale of a reranker's scores ignores what it was saved with",
    55: "layers after the pooling are left out",
    57: "unusual poolings are refused, or replaced without a word",
    59: "vectors are normalised though nobody asked",
    61: "the model's own number of dimensions is refused",
    63: "an embedding is a vector a token, or logits",
    65: "spans begin with the space before their word",
    67: "entities are grouped otherwise than by the reference",
    69: "rows of a sliding window with nothing in it become NaN",
    71: "half precision overflows, and null is served",
    73: "NaN is an unexplained failure, or null",
    75: "padding or a neighbour changes the answer",
    77: "short texts get empty vectors now and then",
    # Under load
    79: "clients that give up end the loop that forms batches",
    81: "one bad input fails all that are batched with it",
    83: "what hung up is kept for ever",
    85: "long lists are refused, or run as one batch until memory ends",
    87: "health is good while the device is dead",
    89: "a crashed worker is not noticed or not replaced",
    91: "large requests hold up the answers to health checks",
    93: "a taken port is noticed late or not at all",
    95: "warming up takes minutes, or more memory than there is",
    # Where it runs
    97: "threads are counted by the host's cores, not by the container's quota",
    99: "unknown URLs become series of metrics",
    101: "the CPU is taken where a GPU was asked for, without a word",
    103: "a read-only root or another user fails the start",
    # Whom it talks to
    105: "base64 embeddings are refused, ignored, or packed otherwise",
    107: "a plain string, or a path without a prefix, is refused",
    109: "broken requests give 500, or no JSON",
    111: "CORS is set and not applied",
    113: "counts of tokens are zero or wrong",
    115: "HEAD is 404 or 405",
}

PENDING: dict[int, str] = {}
"""What waits for a part that is not there yet. A number that gets a test leaves this list."""


def marked() -> dict[int, list[str]]:
    """The tests of each number, read off the sources: nothing is imported, GPU or not."""
    found: dict[int, list[str]] = defaultdict(list)
    for path in sorted(Path("tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for number in _numbers(node):
                    found[number].append(f"{path}::{node.name}")
    return found


def _numbers(test: ast.FunctionDef | ast.AsyncFunctionDef) -> list[int]:
    return [
        ast.literal_eval(argument)
        for decorator in test.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.case"
        for argument in decorator.args
    ]


TESTS = marked()


@pytest.mark.parametrize("number", sorted(set(CASES) - set(PENDING)))
def test_every_fault_has_a_test(number: int) -> None:
    assert TESTS.get(number), f"no test is marked case({number}): {CASES[number]}"


def test_what_is_marked_is_in_the_list_and_waits_for_nothing() -> None:
    assert sorted(set(TESTS) - set(CASES)) == []
    assert sorted(set(TESTS) & set(PENDING)) == []
    assert set(PENDING) <= set(CASES)
