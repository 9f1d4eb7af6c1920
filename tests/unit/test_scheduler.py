import math
import time
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from packhorse.engine.batch import Batch
from packhorse.engine.cost_model import CostModel
from packhorse.engine.scheduler import Limits, Scheduler
from packhorse.request import Arrivals, Sequences, bounds_of

UNBOUNDED = math.inf


def sequences_of(lengths: list[int], first_id: int = 0) -> Sequences:
    total = sum(lengths)
    return Sequences(
        input_ids=np.arange(first_id, first_id + total, dtype=np.int32),
        cu_seqlens=bounds_of(np.array(lengths, np.int32)),
        truncated=np.zeros(len(lengths), np.bool_),
    )


def arrivals_of(
    requests: dict[int, list[int]],
    first_id: int = 0,
    clients: Sequence[int] = (),
    priorities: Sequence[int] = (),
    deadlines: Sequence[float] = (),
) -> Arrivals:
    """One arrival: for each ticket the lengths of its sequences."""
    lengths = [length for request in requests.values() for length in request]
    count = len(requests)
    return Arrivals(
        tickets=np.array(list(requests), np.uint64),
        counts=np.array([len(request) for request in requests.values()], np.int32),
        clients=np.array(clients or [0] * count, np.uint64),
        priorities=np.array(priorities or [0] * count, np.int8),
        deadlines=np.array(deadlines or [math.inf] * count),
        sequences=sequences_of(lengths, first_id),
        arrived=1.0,
    )


def scheduler(max_tokens: int = 100, max_sequences: int = 50) -> Scheduler:
    return Scheduler(Limits(max_tokens, max_sequences, UNBOUNDED), CostModel())


def parts(batch: Batch) -> list[tuple[int, int, int]]:
    return list(
        zip(batch.tickets.tolist(), batch.offsets.tolist(), batch.counts.tolist(), strict=True)
    )


def drain(queue: Scheduler) -> list[Batch]:
    batches = []
    while (batch := queue.next_batch()) is not None:
        batches.append(batch)
    return batches


def test_what_queued_together_leaves_together() -> None:
    queue = scheduler()
    queue.add(arrivals_of({1: [10], 2: [20, 5]}))
    queue.add(arrivals_of({3: [7]}, first_id=1000))
    batch = queue.next_batch()
    assert batch is not None
    assert parts(batch) == [(1, 0, 1), (2, 0, 2), (3, 0, 1)]
    assert batch.sequences.lengths.tolist() == [10, 20, 5, 7]
    assert batch.sequences.input_ids[-7:].tolist() == list(range(1000, 1007))
    assert queue.next_batch() is None


@pytest.mark.case(85)
def test_a_long_list_is_split_by_tokens_and_its_offsets_go_on() -> None:
    queue = scheduler(max_tokens=100)
    queue.add(arrivals_of({5: [30] * 8}))
    assert [parts(batch) for batch in drain(queue)] == [[(5, 0, 3)], [(5, 3, 3)], [(5, 6, 2)]]


def test_the_number_of_sequences_is_bounded() -> None:
    queue = scheduler(max_tokens=1000, max_sequences=4)
    queue.add(arrivals_of({1: [2] * 10}))
    assert [len(batch.sequences) for batch in drain(queue)] == [4, 4, 2]


@pytest.mark.case(85)
def test_a_sequence_over_the_budget_runs_alone() -> None:
    queue = scheduler(max_tokens=10)
    queue.add(arrivals_of({1: [4], 2: [25], 3: [4]}))
    assert [batch.sequences.lengths.tolist() for batch in drain(queue)] == [[4], [25], [4]]


def test_predicted_time_bounds_a_batch() -> None:
    cost = CostModel()
    for tokens in (50, 100, 200):
        cost.observe(tokens, tokens / 1000)
    queue = Scheduler(Limits(1000, 50, 0.0505), cost)
    queue.add(arrivals_of({1: [10] * 20}))
    assert [len(batch.sequences) for batch in drain(queue)] == [5, 5, 5, 5]


def slow_to_start(max_seconds: float = 0.0505, most_seconds: float = 0.4) -> Scheduler:
    """A device that takes 30 ms for any batch and 1 ms for each token: 240 ms are worth that."""
    cost = CostModel()
    for tokens in (50, 100, 200):
        cost.observe(tokens, 0.03 + tokens / 1000)
    return Scheduler(Limits(4096, 1000, max_seconds, most_seconds), cost)


def test_a_batch_takes_longer_than_usual_where_it_would_be_fixed_cost_for_the_most_part() -> None:
    queue = slow_to_start()
    queue.add(arrivals_of({1: [10] * 100}))
    assert len(queue.next_batch().sequences) == 21  # type: ignore[union-attr]


def test_no_batch_takes_longer_than_it_may() -> None:
    queue = slow_to_start(most_seconds=0.1305)
    queue.add(arrivals_of({1: [10] * 100}))
    assert len(queue.next_batch().sequences) == 10  # type: ignore[union-attr]


def test_a_time_that_was_asked_for_is_not_exceeded() -> None:
    queue = slow_to_start(most_seconds=0.0)
    queue.add(arrivals_of({1: [10] * 100}))
    assert len(queue.next_batch().sequences) == 2  # type: ignore[union-attr]


def test_a_long_list_does_not_make_a_batch_longer_for_whom_it_delays() -> None:
    queue = slow_to_start()
    queue.add(arrivals_of({1: [10] * 100, 2: [10]}, clients=[7, 8]))
    assert parts(queue.next_batch()) == [(1, 0, 1), (2, 0, 1)]  # type: ignore[arg-type]
    assert len(queue.next_batch().sequences) == 21  # type: ignore[union-attr]


def test_long_lists_of_several_clients_share_a_long_batch() -> None:
    queue = slow_to_start()
    queue.add(arrivals_of({1: [10] * 100, 2: [10] * 100}, clients=[7, 8]))
    batch = queue.next_batch()
    assert batch is not None
    assert sum(n for _, _, n in parts(batch)) in (20, 21)
    assert {ticket for ticket, _, _ in parts(batch)} == {1, 2}


def test_many_single_texts_of_many_clients_share_a_long_batch() -> None:
    queue = slow_to_start()
    queue.add(arrivals_of({i: [10] for i in range(40)}, clients=list(range(40))))
    assert [len(batch.sequences) for batch in drain(queue)] == [21, 19]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=6), max_size=5), max_size=6
    ),
    st.integers(1, 120),
    st.integers(1, 12),
)
def test_every_sequence_leaves_exactly_once_and_in_order(
    groups: list[list[list[int]]], max_tokens: int, max_sequences: int
) -> None:
    queue = scheduler(max_tokens, max_sequences)
    ticket, first_id, expected = 0, 0, []
    for group in groups:
        requests = {}
        for lengths in group:
            requests[ticket] = lengths
            expected.extend((ticket, i) for i in range(len(lengths)))
            ticket += 1
        queue.add(arrivals_of(requests, first_id))
        first_id += sum(map(sum, group))
    batches = drain(queue)
    seen = [(t, o + i) for batch in batches for t, o, n in parts(batch) for i in range(n)]
    assert seen == expected
    ids = [batch.sequences.input_ids for batch in batches]
    assert np.concatenate([*ids, np.empty(0, np.int32)]).tolist() == list(range(first_id))
    assert queue.num_sequences == 0
    assert queue.num_tokens == 0
    for batch in batches:
        assert len(batch.sequences) <= max_sequences
        assert batch.sequences.num_tokens <= max_tokens or len(batch.sequences) == 1


@pytest.mark.case(79)
def test_cancelled_requests_never_run_and_the_rest_keeps_its_offsets() -> None:
    queue = scheduler(max_tokens=20)
    queue.add(arrivals_of({1: [10, 10, 10], 2: [10], 3: [10, 10]}))
    first = queue.next_batch()
    assert first is not None
    assert parts(first) == [(1, 0, 2)]
    queue.cancel(np.array([2], np.uint64))
    assert queue.num_sequences == 3
    assert queue.num_tokens == 30
    assert [parts(batch) for batch in drain(queue)] == [[(1, 2, 1), (3, 0, 1)], [(3, 1, 1)]]


def test_cancelling_looks_only_into_arrivals_that_may_be_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = scheduler(max_tokens=1000)
    for ticket in range(0, 300, 3):  # each with a ticket before and after a gap
        queue.add(arrivals_of({ticket + 2: [1], ticket: [1]}, clients=[ticket % 2] * 2))
    looked: list[NDArray[np.uint64]] = []
    isin = np.isin

    def noted(found: NDArray[np.uint64], wanted: NDArray[np.uint64]) -> NDArray[np.bool_]:
        looked.append(found)
        return isin(found, wanted)

    monkeypatch.setattr(np, "isin", noted)
    queue.cancel(np.array([1000, 150, 4, 2], np.uint64))  # 4 is in a gap
    assert len(looked) == 3
    assert queue.num_sequences == queue.num_tokens == 198
    left = [ticket for batch in drain(queue) for ticket, _, _ in parts(batch)]
    assert sorted(left) == [t for t in range(300) if t % 3 != 1 and t not in (2, 150)]


def test_cancelling_all_leaves_nothing() -> None:
    queue = scheduler()
    queue.add(arrivals_of({1: [10], 2: [3]}))
    queue.cancel(np.array([1, 2, 9], np.uint64))
    assert (queue.num_sequences, queue.num_tokens) == (0, 0)
    assert queue.next_batch() is None


@pytest.mark.parametrize("rows", [[0], [2], [4], [1, 3], [0, 1, 2], [0, 1, 2, 3, 4]])
def test_taking_rows_out_of_a_batch_leaves_the_others_where_they_were(rows: list[int]) -> None:
    queue = scheduler()
    queue.add(arrivals_of({1: [1, 1, 1], 2: [1], 3: [1]}))
    batch = queue.next_batch()
    assert batch is not None
    owners = [(1, 0), (1, 1), (1, 2), (2, 0), (3, 0)]
    tickets, offsets, counts, arrived = batch.without(np.array(rows))
    left = [
        (t, o + i)
        for t, o, n in zip(tickets.tolist(), offsets.tolist(), counts.tolist(), strict=True)
        for i in range(n)
    ]
    assert left == [owner for row, owner in enumerate(owners) if row not in rows]
    assert len(arrived) == len(tickets)
    assert [parts(batch.alone(row)) for row in rows] == [[(*owners[row], 1)] for row in rows]


LARGE, SMALL = 2**63 + 7, 3
"""Two clients; the first's number would not fit a signed integer."""


def test_a_client_with_one_text_is_not_behind_another_ones_thousand() -> None:
    queue = scheduler(max_tokens=100)
    queue.add(arrivals_of({1: [10] * 1000}, clients=[LARGE]))
    first = queue.next_batch()
    queue.add(arrivals_of({2: [10], 3: [10]}, clients=[SMALL, SMALL]))
    second = queue.next_batch()
    assert first is not None
    assert second is not None
    assert parts(first) == [(1, 0, 10)]
    assert sorted(parts(second)) == [(1, 10, 5), (1, 15, 3), (2, 0, 1), (3, 0, 1)]


def test_two_busy_clients_share_evenly_in_tokens() -> None:
    queue = scheduler(max_tokens=120, max_sequences=1000)
    queue.add(arrivals_of({1: [30] * 100, 2: [5] * 600}, clients=[1, 2]))
    shares = {1: 0, 2: 0}
    for batch in drain(queue)[:40]:
        for ticket, _, count in parts(batch):
            shares[ticket] += count * (30 if ticket == 1 else 5)
    assert shares[1] == pytest.approx(shares[2], rel=0.1)


def test_a_long_sequence_gets_its_turn_among_short_ones() -> None:
    queue = scheduler(max_tokens=100)
    queue.add(arrivals_of({1: [1] * 5000}, clients=[1]))
    queue.add(arrivals_of({2: [95, 95]}, clients=[2]))
    taken = [i for i, batch in enumerate(drain(queue)) for t, _, _ in parts(batch) if t == 2]
    assert taken[1] <= 6


@pytest.mark.parametrize("length", [200, 7])
def test_a_batch_among_many_clients_is_formed_in_few_turns(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share of a token each would mean a round for every token of a sequence."""
    turns = 0
    turn = Scheduler._turn

    def counting(*given: object) -> bool:
        nonlocal turns
        turns += 1
        return turn(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(Scheduler, "_turn", counting)
    queue, clients = scheduler(max_tokens=1000, max_sequences=1000), 1000
    queue.add(arrivals_of({n: [length] * 3 for n in range(clients)}, clients=list(range(clients))))
    batches = 0
    while queue.next_batch() is not None:
        batches += 1
        assert turns < 2 * clients
        turns = 0
    assert batches >= 3 * clients * length / 1000


def test_many_busy_clients_are_served_alike_over_time() -> None:
    """More than have a turn in one batch, and with sequences of very different lengths."""
    lengths = {client: 5 + 13 * client % 90 for client in range(400)}
    queue = scheduler(max_tokens=300, max_sequences=1000)
    queue.add(
        arrivals_of(
            {client: [length] * (1500 // length) for client, length in lengths.items()},
            clients=list(lengths),
        )
    )
    served = dict.fromkeys(lengths, 0)
    for _ in range(1000):
        batch = queue.next_batch()
        assert batch is not None
        assert batch.sequences.num_tokens >= 300 - 95  # nearly full: efficient as well as fair
        for ticket, _, count in parts(batch):
            served[ticket] += count * lengths[ticket]
    # DRR's bound: two clients differ by three of the longest sequences at most.
    assert max(served.values()) - min(served.values()) <= 3 * 95


def test_mixed_clients_in_one_arrival_keep_their_order() -> None:
    queue = scheduler(max_tokens=1000)
    requests = {ticket: [ticket + 1, 2] for ticket in range(9)}
    queue.add(arrivals_of(requests, clients=[2, 1, 2, 3, 1, 2, 3, 3, 1]))
    batch = queue.next_batch()
    assert batch is not None
    assert sorted(parts(batch)) == [(ticket, 0, 2) for ticket in range(9)]
    by_ticket = {t: batch.sequences.lengths[2 * i] for i, (t, _, _) in enumerate(parts(batch))}
    assert by_ticket == {ticket: ticket + 1 for ticket in range(9)}
    order = [t for t, _, _ in parts(batch)]
    for members in ([0, 2, 5], [1, 4, 8], [3, 6, 7]):
        assert [t for t in order if t in members] == members


def test_priority_goes_before_arrival_within_a_client() -> None:
    queue = scheduler(max_tokens=20)
    queue.add(arrivals_of({1: [10] * 4}))
    queue.add(arrivals_of({2: [10], 3: [10]}, priorities=[0, 5]))
    queue.add(arrivals_of({4: [10]}, priorities=[-1]))
    order = [t for batch in drain(queue) for t, _, n in parts(batch) for _ in range(n)]
    assert order == [3, 1, 1, 1, 1, 2, 4]


def test_what_nobody_waits_for_any_more_is_not_run() -> None:
    queue = scheduler(max_tokens=20)
    past, future = time.monotonic() - 1, time.monotonic() + 60
    deadlines = [future, past, future, past]
    queue.add(arrivals_of({1: [10], 2: [10, 10], 3: [10], 4: [5]}, deadlines=deadlines))
    assert [parts(batch) for batch in drain(queue)] == [[(1, 0, 1), (3, 0, 1)]]
    assert (queue.num_sequences, queue.num_tokens) == (0, 0)
