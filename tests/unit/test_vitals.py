"""What front ends and the supervisor conclude from an engine's three words."""

from __future__ import annotations

import pytest

from packhorse.channel.board import Board
from packhorse.channel.vitals import SILENCE_SECONDS, WORDS, Vitals


@pytest.fixture
def vitals() -> Vitals:
    return Vitals(Board.create(2, 5 + WORDS), 1)


def test_a_new_engine_is_not_ready(vitals: Vitals) -> None:
    assert vitals.fault(100.0) == "is not ready yet"


def test_a_beating_engine_is_well(vitals: Vitals) -> None:
    vitals.beat(100.0, 0.0, 4.0)
    assert vitals.fault(100.5) is None


def test_silence_is_a_fault(vitals: Vitals) -> None:
    vitals.beat(100.0, 0.0, 4.0)
    assert vitals.fault(100.0 + SILENCE_SECONDS) is None
    assert vitals.fault(107.0) == "has not responded for 7 s"


def test_a_batch_that_lasts_is_a_fault(vitals: Vitals) -> None:
    vitals.beat(109.0, 100.0, 10.0)
    assert vitals.fault(109.0) is None
    vitals.beat(112.0, 100.0, 10.0)
    assert vitals.fault(112.0) == "has been stuck in a batch for 12 s"
    vitals.beat(112.5, 112.4, 10.0)
    assert vitals.fault(112.5) is None


def test_a_dead_engine_is_cleared(vitals: Vitals) -> None:
    vitals.beat(100.0, 0.0, 4.0)
    vitals.clear()
    assert vitals.fault(100.1) == "is not ready yet"


def test_other_words_of_the_slot_are_left_alone() -> None:
    board = Board.create(2, 5 + WORDS)
    Vitals(board, 1).beat(1.0, 2.0, 3.0)
    assert list(board.slots[1]) == [0.0] * 5 + [1.0, 2.0, 3.0]
    assert list(board.slots[0]) == [0.0] * (5 + WORDS)
