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
    smooth = curves.smoothed(values)
    assert smooth.shape == values.shape
    assert smooth.min() >= values.min() - 1e-9
    assert smooth.max() <= values.max() + 1e-9


def test_smoothing_keeps_a_straight_line_and_removes_noise() -> None:
    line = np.linspace(8, 3, 1000)
    assert curves.smoothed(line)[:-13] == pytest.approx(line[:-13])
    noisy = line + np.where(np.arange(1000) % 2, 0.1, -0.1)
    assert np.abs(curves.smoothed(noisy) - line)[50:].max() < 0.04


def test_short_curves_are_not_smoothed() -> None:
    values = np.array([8.0, 5.0, 4.0, 3.5])
    assert curves.smoothed(values) == pytest.approx(values)


def test_medians_drop_single_spikes() -> None:
    values = np.ones(1000)
    values[::100] = 50.0
    steps, middle = curves.medians((np.arange(1000), values))
    assert len(steps) == len(middle) == curves.MEDIANS_PER_RUN
    assert set(middle) == {1.0}


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
    [([2.0], "▁"), ([3.0, 2.0, 1.0], "█▅▁"), ([2.0, 2.0], "▁▁"), ([10.0, 10.0002, 9.9999], "▁▁▁"), ([0.0, 0.0], "▁▁"), ([], "")],
)
def test_a_sparkline_goes_from_low_to_high(values: list[float], line: str) -> None:
    assert curves.sparkline(of(values), 0, len(values) - 1, len(values)) == line


def test_a_sparkline_is_blank_where_the_curve_has_no_point() -> None:
    assert curves.sparkline((np.array([0, 9]), np.array([1.0, 2.0])), 0, 9, 5) == "▁   █"
    assert curves.sparkline((np.array([100]), np.array([1.0])), 0, 99, 3) == "  ▁"
