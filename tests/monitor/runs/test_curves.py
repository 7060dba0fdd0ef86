"""Smoothing and thinning keep what matters of a curve."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lt_monitor.runs import curves

VALUES = arrays.arrays(np.float64, st.integers(1, 500), elements=st.floats(-100, 100))


def of(values: list[float]) -> curves.Series:
    return np.arange(len(values)), np.array(values)


@given(VALUES)
def test_smoothed_curves_stay_within_the_raw_ones(values: np.ndarray) -> None:
    steps, smooth = curves.smoothed((np.arange(len(values)), values), 1 / 40)
    assert steps.tolist() == list(range(len(values)))
    assert smooth.min() >= values.min()
    assert smooth.max() <= values.max()


@given(VALUES, st.integers(0, 500), st.integers(2, 300), st.sampled_from([None, 0, 1, 7, 100, 10_000]))
def test_nothing_is_seen_before_it_happens(values: np.ndarray, event: int, points: int, window_steps: int | None) -> None:
    """What comes later has no influence on the smoothed curve before it, however it is thinned."""
    numbers = 10 + 5 * np.arange(len(values))
    after = np.where(np.arange(len(values)) >= event, 1e6, values)
    steps, smooth = curves.smoothed((numbers, values), 1 / 40, window_steps, points)
    same_steps, changed = curves.smoothed((numbers, after), 1 / 40, window_steps, points)
    assert len(steps) <= points
    assert steps.tolist() == same_steps.tolist()
    before = steps < 10 + 5 * event
    assert smooth[before].tolist() == changed[before].tolist()


def test_a_spike_is_no_plateau_and_a_level_that_lasts_is_seen() -> None:
    values = np.full(24_000, 2.0)
    values[12_000:12_060] = 9.0
    assert set(curves.smoothed((np.arange(24_000), values), 1 / 40)[1]) == {2.0}
    values[12_000:] = 9.0
    steps, smooth = curves.smoothed((np.arange(24_000), values), 1 / 40)
    assert 12_000 < steps[np.flatnonzero(smooth > 2)[0]] < 12_000 + 24_000 / 80 + 24


def test_smoothing_removes_noise_and_keeps_the_steep_beginning() -> None:
    line = np.linspace(8, 3, 1000)
    noisy = line + np.where(np.arange(1000) % 2, 0.1, -0.1)
    assert np.abs(curves.smoothed((np.arange(1000), noisy), 1 / 40)[1] - line)[50:].max() < 0.17
    steep = 11 - 2 * np.log1p(np.arange(1000))
    assert np.abs(curves.smoothed((np.arange(1000), steep), 1 / 40)[1] - steep).max() < 0.5


def test_the_window_may_be_given_in_steps() -> None:
    steps = 10 * np.arange(1, 101)
    values = np.arange(100) % 2 * 1.0
    assert curves.smoothed((steps, values), 1 / 40, 0)[1].tolist() == values.tolist()
    assert set(curves.smoothed((steps, values), 1 / 40, 40)[1][40:]) == {0.5}


def test_short_curves_are_not_smoothed() -> None:
    values = np.array([8.0, 5.0, 4.0, 3.5])
    assert curves.smoothed((np.arange(4), values), 1 / 40)[1] == pytest.approx(values)


@pytest.mark.parametrize("size", [0, 1, 2])
def test_curves_of_hardly_a_point(size: int) -> None:
    for window_steps in (None, 0, 100):
        steps, smooth = curves.smoothed((np.arange(size), np.ones(size)), 1 / 40, window_steps)
        assert (len(steps), smooth.tolist()) == (size, [1.0] * size)


def test_the_scale_leaves_the_steep_beginning_out() -> None:
    steep = np.arange(100), np.array([9.0] * 7 + [2.0] * 92 + [1.0])
    assert curves.settled_limits([steep], 0, 99) == (1.0, 2.0)
    assert curves.settled_limits([steep], 0, 5) == (9.0, 9.0)
    early = np.array([1]), np.array([5.0])
    assert curves.settled_limits([early], 0, 99) == (5.0, 5.0)
    assert curves.settled_limits([], 0, 99) is None


def test_what_is_no_number_is_left_out() -> None:
    steps, values = curves.finite(np.array([1, 2, 3, 4]), np.array([2.0, np.nan, np.inf, 1.0]))
    assert (steps.tolist(), values.tolist()) == ([1, 4], [2.0, 1.0])


@given(VALUES, st.integers(1, 60))
def test_an_envelope_has_points_of_the_curve_and_both_extremes(values: np.ndarray, half: int) -> None:
    steps, kept = curves.envelope((np.arange(len(values)), values), 2 * half)
    assert len(steps) <= max(2 * half, 1)
    assert (np.diff(steps) > 0).all()
    assert kept.tolist() == values[steps].tolist()
    assert (kept.min(), kept.max()) == (values.min(), values.max())


@given(VALUES, st.integers(2, 60))
def test_a_thinned_curve_keeps_its_ends(values: np.ndarray, points: int) -> None:
    steps, kept = curves.thinned((np.arange(len(values)), values), points)
    assert len(steps) <= points
    assert (steps[0], steps[-1]) == (0, len(values) - 1)
    assert kept.tolist() == values[steps].tolist()


@pytest.mark.parametrize(
    ("values", "line"),
    [([2.0], "▁"), ([3.0, 2.0, 1.0], "██▁"), ([2.0, 2.0], "▁▁"), ([10.0, 10.0002, 9.9999], "▁▁▁"), ([0.0, 0.0], "▁▁"), ([], "")],
)
def test_a_sparkline_goes_from_low_to_high(values: list[float], line: str) -> None:
    assert curves.sparkline(of(values), 0, len(values) - 1, len(values)) == line


def test_a_sparkline_shows_what_follows_the_first_drop() -> None:
    values = [11.0] * 5 + [2.7] * 15 + [2.5] * 20 + [2.3] * 20 + [20.0] * 1 + [2.0] * 39
    assert curves.sparkline(of(values), 0, 99, 20) == "████▆▆▆▆▄▄▄▄█▁▁▁▁▁▁▁"
    assert curves.sparkline(of([11.0] * 2 + [2.0] * 98), 0, 99, 10) == "█▁▁▁▁▁▁▁▁▁"


def test_a_sparkline_is_blank_where_the_curve_has_no_point() -> None:
    assert curves.sparkline((np.array([0, 9]), np.array([1.0, 2.0])), 0, 9, 5) == "▁   █"
    assert curves.sparkline((np.array([100]), np.array([1.0])), 0, 99, 3) == "  ▁"
