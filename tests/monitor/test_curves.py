"""Smoothing keeps what matters of a curve."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lt_monitor import curves
from lt_monitor.runs import Run

VALUES = arrays.arrays(np.float64, st.integers(1, 500), elements=st.floats(-100, 100))


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


def test_series_leave_out_what_is_no_number() -> None:
    run = Run("a", steps={1: {"loss": 2.0}, 2: {"loss": None}, 3: {}, 4: {"loss": 1.0}})
    steps, values = curves.series(run, "loss")
    assert steps.tolist() == [1, 4]
    assert values.tolist() == [2.0, 1.0]


@pytest.mark.parametrize(("values", "line"), [([2.0], "2.000 ▁ 2.000"), ([3.0, 2.0, 1.0], "3.000 █▅▁ 1.000")])
def test_sparkline(values: list[float], line: str) -> None:
    assert curves.sparkline(np.array(values)) == line
