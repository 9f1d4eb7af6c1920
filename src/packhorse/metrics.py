"""What is counted, and how it is shown to Prometheus.

Every process counts in its own slot of a board; whoever is asked for the
metrics adds the slots up. So the numbers are those of all processes, they
survive a process that is killed, no file is written, and an increment is one
addition to a word of memory (prometheus_client's multiprocess mode costs
microseconds for each, and leaves a file for every process that ever was).
All series are known before the first request: no label has a value that a
client can choose.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import product

import numpy as np
from numpy.typing import NDArray

from packhorse.channel.board import Board

ROUTES = (
    *("predict", "health", "info", "metrics", "stats", "root", "unmatched"),
    *("embed", "embed_all", "embed_sparse", "similarity", "rerank", "tokenize", "decode"),
    *("openai_embeddings", "models", "rerank_documents", "classify", "score"),
    *("token_classify", "zero_shot", "fill_mask", "invocations", "openapi", "docs", "pooling"),
)
STATUSES = (
    *("200", "204", "400", "401", "403", "404", "405", "413", "415", "422", "424", "429"),
    *("499", "500", "503", "504", "other"),  # 499: the client hung up
)
REASONS = (
    *("overloaded", "unavailable", "deadline", "unauthorized", "origin", "body_too_large"),
    "connections",
)
CHILDREN = ("engine", "front_end")
SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05),
    *(0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
SIZES = tuple(float(2**power) for power in range(16))

_FAMILIES: list[Counter] = []


class Counter:
    """A number that only grows, or one for each combination of label values."""

    kind = "counter"
    words_each = 1
    of_model = True  # shown with the model's name as a label

    def __init__(self, name: str, help_text: str, **labels: tuple[str, ...]) -> None:
        self.name = name
        self.help_text = help_text
        self.labels = labels
        self.first = words()
        _FAMILIES.append(self)

    @property
    def series(self) -> Iterator[tuple[str, ...]]:
        """The label values of each series, in the order of the words."""
        return product(*self.labels.values())

    @property
    def words(self) -> int:
        """Words of all series together."""
        return self.words_each * math.prod(map(len, self.labels.values()))

    def word(self, *values: str) -> int:
        """Where in a slot the series with these label values begins."""
        return self.first + list(self.series).index(values) * self.words_each

    def total(self, board: Board) -> float:
        """The sum of all series over all slots."""
        return sum(map(board.total, range(self.first, self.first + self.words)))

    def samples(self, board: Board, model: str) -> Iterator[str]:
        """The sums over all slots, a line for each series; ``model`` is its label or nothing."""
        for word, values in enumerate(self.series, self.first):
            labels = [
                f'{name}="{_escaped(value)}"'
                for name, value in zip(self.labels, values, strict=True)
            ]
            yield _sample(self.name, ",".join([*labels, *filter(None, [model])]), board.total(word))


class Gauge(Counter):
    """A number that goes up and down."""

    kind = "gauge"
    of_model = False


class Histogram(Counter):
    """How many observations lie between bounds, and their sum."""

    kind = "histogram"

    def __init__(self, name: str, help_text: str, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.words_each = len(bounds) + 2  # the bucket without a bound, and the sum
        super().__init__(name, help_text)

    def observe(self, slot: memoryview[float], value: float) -> None:
        """Count one observation."""
        slot[self.first + bisect_left(self._bounds, value)] += 1.0
        slot[self.first + self.words_each - 1] += value

    def observe_all(self, slot: memoryview[float], values: NDArray[np.float64]) -> None:
        """Count many observations."""
        places = np.searchsorted(self._bounds, values)
        counts = np.bincount(places, minlength=self.words_each - 1)
        for place in np.flatnonzero(counts).tolist():
            slot[self.first + place] += float(counts[place])
        slot[self.first + self.words_each - 1] += float(values.sum())

    def counts(self, board: Board) -> list[float]:
        """Observations up to each bound and above the one before, and those above the last."""
        return [board.total(self.first + place) for place in range(self.words_each - 1)]

    def count(self, board: Board) -> float:
        """How many observations there were."""
        return sum(self.counts(board))

    def sum(self, board: Board) -> float:
        """Their sum."""
        return board.total(self.first + self.words_each - 1)

    def samples(self, board: Board, model: str) -> Iterator[str]:
        total = 0.0
        more = "," + model if model else ""
        for word, bound in enumerate((*self._bounds, "+Inf"), self.first):
            total += board.total(word)
            yield _sample(f"{self.name}_bucket", f'le="{bound}"{more}', total)
        yield _sample(f"{self.name}_count", model, total)
        yield _sample(f"{self.name}_sum", model, board.total(self.first + self.words_each - 1))


def families() -> tuple[Counter, ...]:
    """All of them, in the order in which they are shown."""
    return tuple(_FAMILIES)


def words() -> int:
    """Words of a slot: all families so far."""
    return sum(family.words for family in _FAMILIES)


REQUESTS = Counter(
    "packhorse_requests_total",
    "HTTP requests answered; 499: the client hung up before.",
    route=ROUTES,
    status=STATUSES,
)
REFUSALS = Counter(
    "packhorse_refusals_total",
    "Requests and connections that were refused, apart from health checks.",
    reason=REASONS,
)
SEQUENCES = Counter("packhorse_sequences_total", "Inputs answered with scores.")
TOKENS = Counter("packhorse_tokens_total", "Tokens of these inputs.")
TRUNCATED = Counter("packhorse_truncated_sequences_total", "Inputs that were cut to fit the model.")
NON_FINITE = Counter("packhorse_non_finite_sequences_total", "Inputs for which the model gave NaN.")
DEDUPLICATED = Counter(
    "packhorse_deduplicated_sequences_total", "Inputs that got the row of an equal one in flight."
)
CACHE_HITS = Counter("packhorse_cache_hits_total", "Inputs answered from the response cache.")
CACHE_MISSES = Counter("packhorse_cache_misses_total", "Inputs that were not in it.")
SHADOW_CHECKED = Counter(
    "packhorse_shadow_checked_texts_total", "Texts tokenised again by `tokenizers`, to compare."
)
SHADOW_DIFFERENCES = Counter(
    "packhorse_shadow_differences_total", "Those of them for which the ids differed."
)
TOTAL_TIME = Histogram(
    "packhorse_request_duration_seconds", "From the request's body to its answer.", SECONDS
)
TOKENIZATION_TIME = Histogram(
    "packhorse_tokenization_duration_seconds", "Tokenising one request.", SECONDS
)
QUEUE_TIME = Histogram(
    "packhorse_queue_duration_seconds", "From tokens to the start of the batch.", SECONDS
)
INFERENCE_TIME = Histogram(
    "packhorse_inference_duration_seconds",
    "On the device, summed over a request's batches.",
    SECONDS,
)
CONNECTIONS = Gauge("packhorse_connections", "Open connections of clients.")
ACCEPTING = Gauge("packhorse_accepting_front_ends", "Front ends that take connections.")
INPUTS_IN_FLIGHT = Gauge("packhorse_inputs_in_flight", "Inputs admitted and not answered.")
TOKENS_IN_FLIGHT = Gauge("packhorse_tokens_in_flight", "Tokens of these inputs, partly estimated.")

QUEUED_SEQUENCES = Gauge("packhorse_queued_sequences", "Inputs that wait for a batch.")
QUEUED_TOKENS = Gauge("packhorse_queued_tokens", "Tokens that wait for a batch.")
WAITING_CLIENTS = Gauge("packhorse_waiting_clients", "Clients that have inputs waiting.")
PREDICTED_RATE = Gauge(
    "packhorse_predicted_tokens_per_second", "What engines are predicted to work off."
)
BATCH_SEQUENCES = Histogram("packhorse_batch_sequences", "Inputs of a batch.", SIZES)
BATCH_TOKENS = Histogram("packhorse_batch_tokens", "Tokens of a batch.", SIZES)
BATCH_TIME = Histogram("packhorse_batch_duration_seconds", "A batch on the device.", SECONDS)
FAILED_BATCHES = Counter("packhorse_failed_batches_total", "Batches whose forward pass raised.")

PADDING_TOKENS = Counter(
    "packhorse_padding_tokens_total",
    "Tokens that fill batches up to the size of a captured graph (GPU).",
)
DEVICE_MEMORY = Gauge(
    "packhorse_device_memory_bytes",
    "Of the GPU: used by everybody, total, and reserved by the engines; process: RSS of engines.",
    kind=("used", "total", "reserved", "process"),
)

RESTARTS = Counter(
    "packhorse_restarts_total", "Processes that died and were replaced.", child=CHILDREN
)
RESTARTS.of_model = False
RELOADS = Counter(
    "packhorse_reloads_total", "Reloads of the model at SIGHUP.", outcome=("success", "failure")
)
RELOADS.of_model = False
READY = Gauge(
    "packhorse_ready_processes",
    "Processes that live and have said that they are ready.",
    child=CHILDREN,
)


def clear_gauges(slot: memoryview[float]) -> None:
    """After a process died: what it had in flight is gone, what it counted stays."""
    for family in _FAMILIES:
        if isinstance(family, Gauge):
            for word in range(family.first, family.first + family.words):
                slot[word] = 0.0


def exposition(board: Board, info: Mapping[str, str]) -> str:
    """All metrics in Prometheus' text format 0.0.4; ``info`` is the labels of packhorse_info."""
    labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in info.items())
    model = f'model="{_escaped(info["model"])}"'
    lines = [*_heading("packhorse_info", "What is served.", "gauge")]
    lines.append(_sample("packhorse_info", labels, 1.0))
    for family in _FAMILIES:
        lines += _heading(family.name, family.help_text, family.kind)
        lines += family.samples(board, model if family.of_model else "")
    return "\n".join(lines) + "\n"


def _heading(name: str, help_text: str, kind: str) -> tuple[str, str]:
    return f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"


def _sample(name: str, labels: str, value: float) -> str:
    return f"{name}{{{labels}}} {value!r}" if labels else f"{name} {value!r}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
