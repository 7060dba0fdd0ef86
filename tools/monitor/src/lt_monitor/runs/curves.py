"""Curves over the steps of a run: smoothed, thinned out for a picture, and small enough for one line of text."""

import itertools

import numpy as np

WINDOWS_PER_RUN = 40
MEDIANS_PER_RUN = 200
# A line's height is at least this share of its values, so the rounding of the log is no mountain.
FLAT_SHARE = 1e-3
SPARKS = "▁▂▃▄▅▆▇█"

# Steps (int64) and finite values (float64), both of shape (points,).
Series = tuple[np.ndarray, np.ndarray]


def finite(steps: np.ndarray, values: np.ndarray) -> Series:
    """The points whose value is a number."""
    known = np.isfinite(values)
    return steps[known], values[known]


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


def envelope(curve: Series, points: int) -> Series:
    """At most `points` of the curve's own points: of each stretch the lowest and the highest, so that no spike is lost."""
    steps, values = curve
    if len(values) <= points:
        return curve
    edges = np.linspace(0, len(values), points // 2 + 1).astype(np.int64)
    chosen = []
    for begin, end in itertools.pairwise(edges):
        part = values[begin:end]
        chosen += sorted({int(begin + part.argmin()), int(begin + part.argmax())})
    return steps[chosen], values[chosen]


def thinned(curve: Series, points: int) -> Series:
    """At most `points` of the curve's own points, evenly spaced, the first and the last among them: for smooth curves."""
    steps, values = curve
    if len(values) <= points:
        return curve
    chosen = np.linspace(0, len(values) - 1, points).round().astype(np.int64)
    return steps[chosen], values[chosen]


def sparkline(curve: Series, first: int, last: int, width: int) -> str:
    """The curve over the steps `first` to `last` in `width` characters, low to high; blank where it has no point.

    Each character is the mean of its steps. The highest and the lowest value of the line are its own, so two lines cannot be
    compared by height.
    """
    steps, values = curve
    if not len(values):
        return " " * width
    cells = np.minimum((steps - first) * width // max(1, last - first + 1), width - 1)
    counts = np.bincount(cells, minlength=width)
    means = np.bincount(cells, values, minlength=width) / np.maximum(counts, 1)
    low, high = means[counts > 0].min(), means[counts > 0].max()
    height = max(high - low, FLAT_SHARE * max(abs(low), abs(high))) or 1.0
    levels = ((means - low) / height * (len(SPARKS) - 1)).round().astype(int)
    return "".join(SPARKS[level] if count else " " for level, count in zip(levels, counts, strict=True))
