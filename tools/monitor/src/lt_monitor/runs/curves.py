"""Curves over the steps of a run: smoothed, thinned out for a picture, and small enough for one line of text.

The smoothed curve is a trailing median. A mean would show a spike of 60 steps as a plateau as long as its window, and a centred
window would show everything half a window before it happened. A median that looks back drops short spikes, which the raw curve
shows, and shows what lasts after it began, half a window late.
"""

import itertools
from collections.abc import Sequence

import numpy as np

# The loss is noisier from step to step than it changes; other metrics are not.
LOSS_WINDOW_SHARE = 1 / 40
WINDOW_SHARE = 1 / 200
# Near the beginning, where the loss falls fast, the window is this share of the points so far.
BEGINNING_SHARE = 1 / 4
SMOOTH_POINTS = 2000
# The loss falls so steeply at first that the rest would look flat: this share of the steps has no say in the scale.
EARLY_SHARE = 0.07
# A line's height is at least this share of its values, so the rounding of the log is no mountain.
FLAT_SHARE = 1e-3
LARGEST = 1e100
SPARKS = "▁▂▃▄▅▆▇█"

# Steps (int64) and finite values (float64), both of shape (points,).
Series = tuple[np.ndarray, np.ndarray]


def finite(steps: np.ndarray, values: np.ndarray) -> Series:
    """Drop points that cannot be drawn: NaN, and values so large that their sums and differences overflow."""
    with np.errstate(invalid="ignore"):
        plottable = np.abs(values) <= LARGEST
    return steps[plottable], values[plottable]


def smoothed(curve: Series, window_share: float, window_steps: int | None = None, points: int = SMOOTH_POINTS) -> Series:
    """Compute trailing medians over `window_share` of the points, or over `window_steps` if given; at most `points` medians.

    If the curve has more points, each stretch of points is first replaced by its median. The median stands at the last step of
    the stretch, so no event appears before its step.
    """
    steps, values = _stretch_medians(curve, points)
    size = len(values)
    if window_steps is None:
        window = int(size * window_share) | 1
    else:
        window = round(window_steps * max(1, size - 1) / max(1, int(steps[-1] - steps[0]))) if size else 1
    window = max(1, min(window, size))
    full = min(size, int(window / BEGINNING_SHARE))
    beginning = [np.median(values[index - int(index * BEGINNING_SHARE) : index + 1]) for index in range(full)]
    if window == 1 or full == size:
        return steps, values if window == 1 else np.array(beginning)
    trailing = np.median(np.lib.stride_tricks.sliding_window_view(values[full - window + 1 :], window), axis=1)
    return steps, np.concatenate([beginning, trailing])


def _stretch_medians(curve: Series, points: int) -> Series:
    steps, values = curve
    if len(values) <= points:
        return curve
    edges = np.linspace(0, len(values), points + 1).astype(np.int64)
    medians = [np.median(values[begin:end]) for begin, end in itertools.pairwise(edges)]
    return steps[edges[1:] - 1], np.array(medians)


def settled_limits(
    curves: Sequence[Series], first: float, last: float, early_share: float = EARLY_SHARE
) -> tuple[float, float] | None:
    """The lowest and the highest value of the curves between two steps, without the steep beginning: the scale of a loss.

    If all points are in the steep beginning, they all count. None if there are no points.
    """
    begin = first + early_share * (last - first)
    within = [values[(steps >= first) & (steps <= last)] for steps, values in curves]
    late = [values[(steps >= begin) & (steps <= last)] for steps, values in curves]
    shown = np.concatenate([*(late if any(map(len, late)) else within), np.empty(0)])
    return (float(shown.min()), float(shown.max())) if len(shown) else None


def envelope(curve: Series, points: int) -> Series:
    """Thin the curve to at most `points` points: the lowest and the highest point per stretch, so no spike is lost."""
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

    A character shows the mean of its steps. The smoothed curve after the steep beginning sets the scale, as for the loss in a
    picture. If the smoothed curve is level, the means set the scale. A value outside the scale gets the highest or the lowest
    character. Each line has a separate scale, so the heights of two lines cannot be compared.
    """
    steps, values = curve
    if not len(values):
        return " " * width
    cells = np.minimum((steps - first) * width // max(1, last - first + 1), width - 1)
    counts = np.bincount(cells, minlength=width)
    means = np.bincount(cells, values, minlength=width) / np.maximum(counts, 1)
    low, high = settled_limits([smoothed(curve, LOSS_WINDOW_SHARE)], first, last) or (0.0, 0.0)
    if high == low:
        low, high = means[counts > 0].min(), means[counts > 0].max()
    height = max(high - low, FLAT_SHARE * max(abs(low), abs(high))) or 1.0
    levels = ((means - low) / height * (len(SPARKS) - 1)).round().clip(0, len(SPARKS) - 1).astype(int)
    return "".join(SPARKS[level] if count else " " for level, count in zip(levels, counts, strict=True))
