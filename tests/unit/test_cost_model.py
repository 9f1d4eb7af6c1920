import random

import pytest

from packhorse.engine.cost_model import CostModel


def test_a_line_is_learned_from_noisy_batches() -> None:
    cost, noise = CostModel(), random.Random(0)
    for _ in range(200):
        tokens = noise.randrange(100, 4000)
        cost.observe(tokens, (0.002 + 1e-5 * tokens) * noise.uniform(0.95, 1.05))
    assert cost.predict(1000) == pytest.approx(0.012, rel=0.05)
    assert cost.tokens_within(0.022, 10_000) == pytest.approx(2000, rel=0.07)


def test_equal_sizes_give_a_rate_and_no_division_by_zero() -> None:
    cost = CostModel()
    for _ in range(10):
        cost.observe(500, 0.05)
    assert cost.predict(1000) == pytest.approx(0.1)


def test_a_machine_that_slows_down_is_noticed() -> None:
    cost, sizes = CostModel(), random.Random(1)
    for rate in (1e-5, 4e-5):
        for _ in range(150):
            tokens = sizes.randrange(100, 4000)
            cost.observe(tokens, rate * tokens)
    assert cost.predict(1000) == pytest.approx(0.04, rel=0.1)


def test_bounds_hold_before_and_after_learning() -> None:
    cost = CostModel()
    assert cost.predict(100) == 0
    assert cost.tokens_within(0.05, 4096) == 4096
    for tokens in (100, 200, 400):
        cost.observe(tokens, tokens / 10)
    assert cost.tokens_within(0.05, 4096) == 1


def test_small_batches_that_were_slow_once_grow_again() -> None:
    cost, budget = CostModel(), 0
    for _ in range(60):
        cost.observe(21, 0.045)  # a busy moment: all but 2 ms of it had nothing to do with size
    for _ in range(60):
        budget = cost.tokens_within(0.05, 4096)
        cost.observe(budget, 0.002 + 1e-4 * budget)
    assert budget > 300


def test_the_fixed_cost_is_remembered_while_batches_of_one_size_tell_nothing_of_it() -> None:
    cost, noise = CostModel(), random.Random(2)

    def batch(tokens: int) -> None:
        cost.observe(tokens, (0.02 + 1e-4 * tokens) * noise.uniform(0.97, 1.03))

    for _ in range(50):
        batch(noise.randrange(100, 2000))
    for _ in range(300):
        batch(noise.randrange(1700, 1720))
    assert cost.fixed == pytest.approx(0.02, rel=0.2)


def test_a_new_fixed_cost_is_learned() -> None:
    cost, sizes = CostModel(), random.Random(3)
    for fixed in (0.1, 0.01):
        for _ in range(150):
            tokens = sizes.randrange(100, 2000)
            cost.observe(tokens, fixed + 1e-4 * tokens)
    assert cost.fixed == pytest.approx(0.01, rel=0.2)
