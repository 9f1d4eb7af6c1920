"""The numbers of /metrics are those that clients counted themselves, exactly."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.service import Service, service, until

pytestmark = pytest.mark.long

KEY = "a-key"


@pytest.fixture(scope="module")
def server() -> Iterator[Service]:
    with service(
        front_ends=2, api_key=KEY, max_concurrent_requests=30, payload_limit=5000, dedup="off"
    ) as made:
        made.control(seconds=0.01)
        yield made


def samples(server: Service) -> dict[str, float]:
    """Every sample by name and labels, but without the model's."""
    found = {}
    for family in text_string_to_metric_families(server.get("/metrics").text):
        for sample in family.samples:
            labels = [f"{k}={v}" for k, v in sorted(sample.labels.items()) if k != "model"]
            found[",".join([sample.name, *labels])] = sample.value
    return found


def client(server: Service, seed: int) -> Counter[str]:
    """Forty requests of one client, good and bad, and what it saw."""
    seen: Counter[str] = Counter()
    chance = random.Random(seed)
    bodies: list[Any] = ["a", ["a", "b"], [["good " * n] for n in range(1, 9)], [["a"]] * 12]
    bodies += [[], [["a"]] * 31, "x" * 6000]  # 400, 422, 413
    with httpx.Client(base_url=server.url, timeout=20) as session:
        for _ in range(40):
            headers = {} if chance.random() < 0.1 else {"x-api-key": KEY}
            inputs = chance.choice(bodies)
            answer = session.post("/predict", json={"inputs": inputs}, headers=headers)
            seen[str(answer.status_code)] += 1
            if answer.status_code == 200:
                seen["sequences"] += len(inputs) if isinstance(inputs[0], list) else 1
                seen["tokens"] += int(answer.headers["x-compute-tokens"])
    return seen


def test_metrics_equal_what_clients_counted(server: Service) -> None:
    seen: Counter[str] = Counter()
    before: dict[str, float] = {}
    with ThreadPoolExecutor(12) as clients:
        running = [clients.submit(client, server, seed) for seed in range(12)]
        while not all(one.done() for one in running):  # scraped under load: nothing goes back
            now = samples(server)
            assert all(now[name] >= value for name, value in before.items() if "_total" in name)
            before = now
            time.sleep(0.05)
    for one in running:
        seen += one.result()
    assert set(seen) >= {"200", "400", "401", "413", "422", "429"}
    # Front ends add up times and sizes four times a second, statuses at once.
    until(lambda: samples(server)["packhorse_tokens_total"] == seen["tokens"])
    found = samples(server)
    for status in ("200", "400", "401", "413", "422", "429", "500", "503"):
        name = f"packhorse_requests_total,route=predict,status={status}"
        assert found[name] == seen[status], status
    assert found["packhorse_sequences_total"] == seen["sequences"]
    for name in ("request", "tokenization", "queue", "inference"):
        assert found[f"packhorse_{name}_duration_seconds_count"] == seen["200"]
    assert found["packhorse_batch_sequences_sum"] == seen["sequences"]
    assert found["packhorse_batch_tokens_sum"] == seen["tokens"]
    for reason, status in (
        *(("unauthorized", "401"), ("body_too_large", "413"), ("overloaded", "429")),
        *(("unavailable", "503"), ("deadline", "504")),
    ):
        assert found[f"packhorse_refusals_total,reason={reason}"] == seen[status], reason
    assert found["packhorse_inputs_in_flight"] == found["packhorse_tokens_in_flight"] == 0
    assert found["packhorse_device_memory_bytes,kind=used"] == 3  # the fake's
    assert found["packhorse_device_memory_bytes,kind=process"] > 10_000_000


@pytest.mark.case(99)
def test_no_client_can_make_up_a_series(server: Service) -> None:
    names = set(samples(server))
    with httpx.Client(base_url=server.url, headers={"x-api-key": KEY}, timeout=20) as session:
        for number in range(100):
            session.get(f"/wp-{number}")
            session.request(f"VERB{number}", "/predict", headers={"x-request-id": str(number)})
            session.post("/predict", json={"inputs": "a", "model": f"model-{number}"})
    assert set(samples(server)) == names
