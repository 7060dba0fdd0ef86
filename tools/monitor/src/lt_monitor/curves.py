"""Curves over the steps of a run: raw, smoothed, and small enough for one line of text."""

import numpy as np

from lt_monitor import summary
from lt_monitor.runs import Run

WINDOWS_PER_RUN = 40
MEDIANS_PER_RUN = 200
SPARKS = "▁▂▃▄▅▆▇█"
SPARKLINE_WIDTH = 60

Series = tuple[np.ndarray, np.ndarray]


def series(run: Run, field: str) -> Series:
    """Steps (int64) and finite values (float64) of a field, both of shape (points,)."""
    points = [(step, event[field]) for step, event in run.steps.items() if event.get(field) is not None]
    return series_of(points)


def series_of(points: list[tuple[int, float]]) -> Series:
    return np.array([step for step, _ in points], dtype=np.int64), np.array([value for _, value in points], dtype=np.float64)


def speed(run: Run) -> Series:
    rates = ((step, summary.tokens_per_second(event, run.arguments)) for step, event in run.steps.items())
    return series_of([(step, rate) for step, rate in rates if rate is not None])


def smoothed(values: np.ndarray) -> np.ndarray:
    """Running mean over 1/40 of the points; shape as `values`.

    The window is centred and narrows towards the beginning, where the loss falls fast. At the end only its right half narrows, so
    the last value is as steady as the others.
    """
    half = len(values) // (2 * WINDOWS_PER_RUN)
    total = np.concatenate(([0.0], np.cumsum(values)))
    centre = np.arange(len(values))
    left = np.minimum(centre, half)
    right = np.minimum(left, len(values) - 1 - centre)
    return np.asarray((total[centre + right + 1] - total[centre - left]) / (left + right + 1))


def medians(curve: Series) -> Series:
    """The curve as at most MEDIANS_PER_RUN points: single spikes vanish, where a mean would show each as a plateau."""
    steps, values = curve
    parts = min(MEDIANS_PER_RUN, len(values))
    middle = np.array([np.median(part) for part in np.array_split(steps, parts)])
    return middle, np.array([np.median(part) for part in np.array_split(values, parts)])


def sparkline(values: np.ndarray) -> str:
    """The curve in one line of text, low to high, with the first and the last value."""
    parts = np.array_split(values, min(SPARKLINE_WIDTH, len(values)))
    means = np.array([part.mean() for part in parts])
    span = float(np.ptp(means)) or 1.0
    levels = ((means - means.min()) / span * (len(SPARKS) - 1)).round().astype(int)
    return f"{values[0]:.3f} {''.join(SPARKS[level] for level in levels)} {values[-1]:.3f}"
