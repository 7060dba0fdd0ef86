"""Which losses stand out, against losses whose level and noise are known."""

import math

import numpy as np
import pytest

from lt_shared.data.sample_order import loss_level
from lt_shared.data.sample_order.loss_level import LossLevel


def standing_out(losses: "list[float] | np.ndarray") -> list[int]:
    level = LossLevel(20, 10)
    return [step for step, loss in enumerate(losses) if level.compare(float(loss))]


def test_noise_and_any_usual_fall_are_no_jump() -> None:
    for seed in range(30):
        steps, noise = np.arange(400), np.random.default_rng(seed)
        for fall in (5.0, 20.0, 100.0):
            assert standing_out(2 + 8 * np.exp(-steps / fall) + noise.normal(0, 0.02, 400)) == []


def test_a_jump_in_a_steep_fall_is_seen() -> None:
    """The loss is then below that of some steps before."""
    losses = 2 + 8 * np.exp(-np.arange(60) / 20) + np.random.default_rng(0).normal(0, 0.02, 60)
    losses[25] += 2.5
    assert losses[25] < losses[9]
    assert standing_out(losses) == [25]


def test_a_jump_does_not_hide_the_next() -> None:
    losses = np.random.default_rng(0).normal(2, 0.02, 100)
    places = [30, 32, 33, 40, 41, 42, 60, 75, 90]
    losses[places] = [9, 6, 4, 3, 2.9, 2.8, 2.7, 2.6, 2.5]
    assert standing_out(losses) == places


def test_a_tenth_and_six_deviations_are_needed() -> None:
    flat = [2.0, 2.0001] * 20
    assert standing_out([*flat, 2.19]) == []
    assert standing_out([*flat, 2.21]) == [40]
    wide = np.random.default_rng(0).normal(2, 0.5, 40)
    assert standing_out([*wide, 3.5]) == []


def test_a_loss_that_stays_up_becomes_the_level() -> None:
    losses = [2.0] * 20 + [9.0] * 60 + [20.0]
    assert standing_out(losses) == [*range(20, 30), 80]


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_what_is_no_number_stands_out_and_counts_nowhere(bad: float) -> None:
    assert standing_out([bad] * 5 + [2.0] * 15 + [bad, 2.0, 9.0]) == [20, 22]


def test_how_far_a_loss_is_from_others() -> None:
    """By hand: the deviations from 4 are 2, 1, 0, 1 and 96, so their median is 1."""
    assert loss_level.usual([2, 3, 4, 5, 100]) == (4, 6 * 1.4826)
    assert loss_level.usual([3.0, 3.0, math.inf]) == (3.0, pytest.approx(0.3))
    assert loss_level.usual([math.inf]) == (math.inf, 0)


def test_up_and_down() -> None:
    level = LossLevel(20, 10)
    losses = [2.0, 2.01] * 10 + [1.5, 2.0, 2.6, 1.9, 2.1, 0.5]
    assert [level.compare(loss) for loss in losses][20:] == [-1, 0, 1, 0, 0, -1]
