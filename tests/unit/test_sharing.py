"""Equal texts in flight are computed once, and answers are kept within a bound."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from packhorse.channel.board import Board
from packhorse.errors import InternalError, NonFiniteOutputError
from packhorse.metrics import CACHE_HITS, CACHE_MISSES, DEDUPLICATED, words
from packhorse.request import Completions, Sequences, bounds_of
from packhorse.server.pending import Block, Pending
from packhorse.server.response_cache import ENTRY_BYTES, ResponseCache
from packhorse.server.scores import ScoreWriter, most_bytes
from packhorse.server.sharing import Sharing
from packhorse.server.terms import Terms


class Rig:
    """Sharing, and what a link to an engine does with what is left."""

    def __init__(self, dedup: bool = True, cache_bytes: int = 0) -> None:
        self.board = Board.create(1, words())
        self.cache = ResponseCache(cache_bytes) if cache_bytes else None
        self.sharing = Sharing(self.board.slots[0], dedup, self.cache)
        self.dropped: list[Pending] = []

    def ask(self, *texts: str, terms: Terms | None = None) -> Pending:
        """A request; each character is a token."""
        future = asyncio.get_running_loop().create_future()
        pending = Pending(list(texts), 1, True, "right", 0, future, terms or Terms(client=1))
        pending.on_abandon = self.dropped.append
        return pending

    def reduce(
        self, *requests: Pending, segments: tuple[int, ...] = (), marks: tuple[int, ...] = ()
    ) -> list[str]:
        """The texts that are left to compute."""
        texts = [text for pending in requests for text in pending.inputs]
        ids = np.frombuffer("".join(map(str, texts)).encode(), np.uint8).astype(np.int32)
        sequences = Sequences(
            ids,
            bounds_of(np.array([len(text) for text in texts], np.int32)),
            np.zeros(len(texts), np.bool_),
            np.array(segments, np.int32) if segments else None,
            marks=np.array(marks, np.int32) if marks else None,
        )
        leading, left = self.sharing.reduce(requests, sequences)
        bounds = left.cu_seqlens.tolist()
        assert sum(pending.num_sent for pending in leading) == len(left)
        return [
            bytes(left.input_ids[start:stop].astype(np.uint8)).decode()
            for start, stop in pairwise(bounds)
        ]

    def word(self, word: int) -> float:
        return self.board.total(word)


def block(*values: float, code: int = 0) -> Block:
    """Rows of one logit."""
    count = len(values)
    return Block(
        Completions(
            np.zeros(1, np.uint64),
            np.zeros(1, np.int32),
            np.array([count], np.int32),
            np.full(count, code, np.uint8),
            np.array(values, np.float32)[:, None],
            np.zeros(1, np.float32),
            0.001,
        )
    )


def rows_of(pending: Pending) -> list[float]:
    """Its logits, in the order of its inputs."""
    rows = {}
    for given, offset, first, count in pending.parts:
        for row in range(count):
            rows[offset + row] = float(given.completions.values[first + row, 0])
    assert sorted(rows) == list(range(pending.count))
    return [rows[row] for row in range(pending.count)]


def run(scenario: Callable[[Rig], None], **options: int) -> None:
    async def main() -> None:
        scenario(Rig(**options))

    asyncio.run(main())


async def settled() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_equal_texts_are_computed_once_within_and_between_requests() -> None:
    def scenario(rig: Rig) -> None:
        one, two = rig.ask("ab", "c", "ab"), rig.ask("c", "d")
        assert rig.reduce(one, two) == ["ab", "c", "d"]
        three = rig.ask("d")
        assert rig.reduce(three) == []
        assert rig.word(DEDUPLICATED.first) == 3
        one.deliver(block(1.0, 2.0), 0, 0, 2)
        assert rows_of(one) == [1.0, 2.0, 1.0]
        assert one.future.done()
        assert not two.future.done()
        two.deliver(block(9.0, 3.0), 0, 1, 1)
        assert rows_of(two) == [2.0, 3.0]
        assert rows_of(three) == [3.0]
        assert two.future.done()
        assert three.future.done()

    run(scenario)


def test_what_differs_is_not_shared() -> None:
    def scenario(rig: Rig) -> None:
        assert rig.reduce(rig.ask("abcd")) == ["abcd"]
        assert rig.reduce(rig.ask("abcd"), segments=(2,)) == ["abcd"]  # a pair of the same ids
        assert rig.reduce(rig.ask("abcd"), segments=(4,)) == []  # not a pair
        assert rig.reduce(rig.ask("abcd", terms=Terms(client=2))) == ["abcd"]
        assert rig.reduce(rig.ask("abcd", terms=Terms(client=1, priority=1))) == ["abcd"]
        assert rig.word(DEDUPLICATED.first) == 1

    run(scenario)


def test_a_mark_tells_equal_texts_apart() -> None:
    def scenario(rig: Rig) -> None:
        first, second, third = rig.ask("abc"), rig.ask("abc"), rig.ask("abc")
        assert rig.reduce(first, second, third, marks=(0, 1, 1)) == ["abc", "abc"]

    run(scenario)


def test_a_follower_may_have_a_later_deadline_as_the_engine_is_told_of_none() -> None:
    def scenario(rig: Rig) -> None:
        leader = rig.ask("a", terms=Terms(client=1, deadline=1.0))
        assert rig.reduce(leader) == ["a"]
        assert rig.reduce(rig.ask("a", terms=Terms(client=1, deadline=2.0))) == []
        assert leader.engine_deadline == math.inf

    run(scenario)


def test_a_leader_that_is_gone_goes_on_for_its_followers_until_they_are_gone() -> None:
    def scenario(rig: Rig) -> None:
        leader, first, second = rig.ask("a"), rig.ask("a"), rig.ask("a")
        rig.reduce(leader, first, second)
        leader.abandon(InternalError("gone"))
        assert rig.dropped == []
        later = rig.ask("a")
        assert rig.reduce(later) == ["a"]  # it leads: nobody follows one that is gone
        first.abandon(InternalError("gone"))
        assert leader not in rig.dropped
        leader.deliver(block(1.0), 0, 0, 1)
        assert rows_of(second) == [1.0]
        assert not later.future.done()

    run(scenario)


def test_a_leader_is_dropped_with_its_last_follower() -> None:
    def scenario(rig: Rig) -> None:
        leader, follower = rig.ask("a", "a"), rig.ask("a")
        rig.reduce(leader, follower)
        leader.abandon(InternalError("gone"))
        follower.abandon(InternalError("gone"))
        assert leader in rig.dropped

    run(scenario)


def test_followers_of_one_that_fails_fail() -> None:
    def scenario(rig: Rig) -> None:
        leader, follower = rig.ask("a"), rig.ask("a")
        rig.reduce(leader, follower)
        leader.abandon(InternalError("gone"))
        leader.fail(InternalError("the engine ended"))
        assert isinstance(follower.future.exception(), InternalError)
        leader.future.exception()

    run(scenario)


def test_a_row_that_has_come_is_not_waited_for() -> None:
    def scenario(rig: Rig) -> None:
        leader = rig.ask("a", "b")
        rig.reduce(leader)
        leader.deliver(block(1.0), 0, 0, 1)
        assert rig.reduce(rig.ask("a")) == ["a"]
        assert rig.reduce(rig.ask("b")) == []

    run(scenario)


def test_nothing_is_remembered_of_what_is_over() -> None:
    async def main() -> None:
        rig = Rig()
        asked = [rig.ask("a", "b", "a"), rig.ask("a"), rig.ask("c")]
        rig.reduce(*asked)
        asked[0].deliver(block(1.0, 2.0), 0, 0, 2)
        asked[2].abandon(InternalError("gone"))
        await settled()
        assert rig.sharing._leaders == {}
        asked[2].future.exception()

    asyncio.run(main())


def test_answers_are_kept_for_those_of_one_owner() -> None:
    def scenario(rig: Rig) -> None:
        anybody, keyed = Terms(client=1), Terms(client=7, owner=7)
        first = rig.ask("a", "b", terms=anybody)
        assert rig.reduce(first) == ["a", "b"]
        first.deliver(block(1.0, 2.0), 0, 0, 2)
        again = rig.ask("b", "c", terms=Terms(client=2))
        assert rig.reduce(again) == ["c"]
        again.deliver(block(3.0), 0, 0, 1)
        assert rows_of(again) == [2.0, 3.0]
        assert rig.reduce(rig.ask("b", terms=keyed)) == ["b"]
        assert (rig.word(CACHE_HITS.first), rig.word(CACHE_MISSES.first)) == (1, 4)
        assert rig.word(DEDUPLICATED.first) == 0

    run(scenario, dedup=False, cache_bytes=100_000)


def test_errors_are_not_kept() -> None:
    def scenario(rig: Rig) -> None:
        first = rig.ask("a")
        rig.reduce(first)
        first.deliver(block(math.nan, code=NonFiniteOutputError.code), 0, 0, 1)
        assert rig.reduce(rig.ask("a")) == ["a"]

    run(scenario, cache_bytes=100_000)


def test_the_cache_is_bounded_and_drops_what_was_not_used_for_longest() -> None:
    each = ENTRY_BYTES + 8 + 4 + 50  # ids, a number, its text
    cache = ResponseCache(9 * each, text_bytes=50)
    keys = [(0, (b"%8d" % number, -1, False, 0)) for number in range(20)]
    for number, key in enumerate(keys):
        cache.put(key, block(float(number)), 0)
        cache.put(key, block(float(number)), 0)
        assert cache.get(keys[0]) is not None
    assert len(cache) == 9
    assert cache.bytes == 9 * each
    assert [cache.get(key) is not None for key in keys] == [True] + [False] * 11 + [True] * 8


def test_an_answer_that_would_push_out_many_is_not_kept() -> None:
    cache = ResponseCache(9 * ENTRY_BYTES)
    small, large = (0, (b"small", -1, False, 0)), (0, (b"n" * ENTRY_BYTES, -1, False, 0))
    cache.put(small, block(1.0), 0)
    cache.put(large, block(1.0), 0)
    assert cache.get(small) is not None
    assert cache.get(large) is None
    assert cache.bytes == ENTRY_BYTES + 5 + 4


@pytest.mark.parametrize("labels", [("POSITIVE", "NEGATIVE"), ('a "long" label of a report ' * 9,)])
def test_the_text_of_an_answer_is_never_longer_than_is_counted(labels: tuple[str, ...]) -> None:
    writer = ScoreWriter(labels, "single_label_classification")
    longest = np.full((1, len(labels)), -np.finfo(np.float32).tiny, np.float32)
    written = [row for raw in (False, True) for row in writer.written(writer.scores(longest, raw))]
    assert sum(map(len, written)) <= most_bytes(labels)


def test_a_batch_counts_once_in_the_time_of_a_request_that_it_answers() -> None:
    async def main() -> None:
        rig = Rig()
        leader, follower = rig.ask("a", "b", "a"), rig.ask("a", "b")
        assert rig.reduce(leader, follower) == ["a", "b"]
        leader.deliver(block(1.0, 2.0), 0, 0, 2)
        assert leader.future.done()
        assert follower.future.done()
        assert leader.inference == follower.inference == 0.001
        again = rig.ask("c", "d")
        assert rig.reduce(again) == ["c", "d"]
        again.deliver(block(1.0), 0, 0, 1)
        again.deliver(block(2.0), 1, 0, 1)
        assert again.inference == 0.002

    asyncio.run(main())
