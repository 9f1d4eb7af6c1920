"""Counting over several processes, and the text that Prometheus reads."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter as Tally
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as ReferenceHistogram
from prometheus_client.parser import text_string_to_metric_families

from packhorse import metrics
from packhorse.channel.board import Board
from packhorse.engine.device_gauges import DeviceGauges
from packhorse.server.observations import Observations, ShadowCounts


def new_board(slots: int = 3) -> Board:
    return Board.create(slots, metrics.words())


def labels_of(sample: Any) -> list[tuple[str, str]]:
    named = sample.labels if sample.name == "packhorse_info" else sample.labels.keys() - {"model"}
    return sorted((name, sample.labels[name]) for name in named)


def shown(board: Board) -> dict[str, float]:
    """Every sample by name and labels, but without the model's."""
    text = metrics.exposition(board, {"version": "1", "model": 'a "b"\\c\nd'})
    return {
        sample.name + "".join(f",{k}={v}" for k, v in labels_of(sample)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_slots_are_added_up() -> None:
    board = new_board()
    word = metrics.REQUESTS.word("predict", "429")
    board.slots[1][word] += 2.0
    board.slots[2][word] += 5.0
    samples = shown(board)
    assert samples["packhorse_requests_total,route=predict,status=429"] == 7.0
    assert samples["packhorse_requests_total,route=predict,status=200"] == 0.0


def test_labels_are_escaped() -> None:
    assert shown(new_board())['packhorse_info,model=a "b"\\c\nd,version=1'] == 1.0


def test_every_series_has_its_own_word() -> None:
    places: Tally[int] = Tally()
    for family in metrics._FAMILIES:
        for values in family.series:
            first = family.word(*values)
            places.update(range(first, first + family.words_each))
    assert set(places.values()) == {1}
    assert set(places) == set(range(metrics.words()))


def test_what_a_killed_process_counted_is_kept() -> None:
    board = new_board()
    script = (
        "import os, signal, sys\n"
        "from packhorse import metrics\n"
        "from packhorse.channel.board import Board\n"
        "board = Board(int(sys.argv[1]), 3, metrics.words())\n"
        "board.slots[1][metrics.TOKENS.first] += 12.0\n"
        "board.slots[1][metrics.INPUTS_IN_FLIGHT.first] += 3.0\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(board.fd)], pass_fds=[board.fd], check=False)
    assert shown(board)["packhorse_tokens_total"] == 12.0
    assert shown(board)["packhorse_inputs_in_flight"] == 3.0
    metrics.clear_gauges(board.slots[1])
    assert shown(board)["packhorse_tokens_total"] == 12.0
    assert shown(board)["packhorse_inputs_in_flight"] == 0.0


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(0, 100) | st.sampled_from(metrics.SECONDS), max_size=30))
def test_histograms_count_as_prometheus_does(values: list[float]) -> None:
    board = new_board()
    registry = CollectorRegistry()
    reference = ReferenceHistogram("reference", "", buckets=metrics.SECONDS, registry=registry)
    for value in values:
        metrics.TOTAL_TIME.observe(board.slots[0], value)
        reference.observe(value)
    metrics.BATCH_TIME.observe_all(board.slots[1], np.array(values, np.float64))
    samples = shown(board)
    for bound in (*metrics.SECONDS, "+Inf"):
        expected = registry.get_sample_value("reference_bucket", {"le": str(bound)})
        for name in ("packhorse_request_duration_seconds", "packhorse_batch_duration_seconds"):
            assert samples[f"{name}_bucket,le={bound}"] == expected
            assert samples[f"{name}_count"] == len(values)
            np.testing.assert_allclose(samples[f"{name}_sum"], sum(values))


def test_observations_are_counted_together() -> None:
    board = new_board()
    observations = Observations(board.slots[1])
    for number in range(1500):  # more than are kept
        observations.add(0.004, 0.0001, 0.002, 0.001, 2, 10, number % 2)
    observations.flush()
    observations.flush()
    samples = shown(board)
    assert samples["packhorse_request_duration_seconds_count"] == 1500
    assert samples["packhorse_request_duration_seconds_bucket,le=0.003"] == 0
    assert samples["packhorse_request_duration_seconds_bucket,le=0.005"] == 1500
    assert samples["packhorse_inference_duration_seconds_bucket,le=0.001"] == 1500
    assert samples["packhorse_sequences_total"] == 3000
    assert samples["packhorse_tokens_total"] == 15000
    assert samples["packhorse_truncated_sequences_total"] == 750


def test_shadow_checks_are_added_to_those_of_the_process_before() -> None:
    board = new_board()
    for _ in range(2):  # one process after the other, in the same slot
        tokenizer = SimpleNamespace(shadow_counts=(0, 0))
        counts = ShadowCounts(tokenizer, board.slots[1])  # type: ignore[arg-type]
        for checked, differences in ((3, 0), (5, 1), (5, 1)):
            tokenizer.shadow_counts = checked, differences
            counts.count()
    samples = shown(board)
    assert samples["packhorse_shadow_checked_texts_total"] == 10
    assert samples["packhorse_shadow_differences_total"] == 2


def test_total_of_a_word() -> None:
    board = Board.create(4, 3)
    for number, slot in enumerate(board.slots):
        slot[2] = float(number)
    assert board.total(2) == 6.0
    assert board.total(1) == 0.0


def test_what_concerns_the_model_has_its_name_as_a_label() -> None:
    text = metrics.exposition(new_board(), {"model": 'a"b'})
    assert 'packhorse_tokens_total{model="a\\"b"} 0.0' in text
    assert 'packhorse_batch_tokens_bucket{le="1.0",model="a\\"b"} 0.0' in text
    assert 'packhorse_restarts_total{child="engine"} 0.0' in text
    assert "packhorse_connections 0.0" in text


def test_the_devices_memory_and_padding_are_looked_at_now_and_then() -> None:
    board = new_board()
    engine = SimpleNamespace(padding_tokens=5, memory=lambda: {"device_memory_used": 30})
    gauges = DeviceGauges(engine, board.slots[1])
    gauges.observe(10.0)
    engine.padding_tokens = 12
    gauges.observe(10.5)  # too early
    assert shown(board)["packhorse_padding_tokens_total"] == 0
    gauges.observe(11.5)
    samples = shown(board)
    assert samples["packhorse_padding_tokens_total"] == 7  # what was before is not its own
    assert samples["packhorse_device_memory_bytes,kind=used"] == 30
    assert samples["packhorse_device_memory_bytes,kind=process"] > 10_000_000
