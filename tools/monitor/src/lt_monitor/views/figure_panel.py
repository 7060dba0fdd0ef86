"""One panel of a picture: the curves of a metric, their legend, and the limits of the axes.

The limits of the loss come from its running median without the steep beginning, so that neither a spike nor the first steps
flatten the curve. Other metrics are shown from zero to 1.15 times their 99th percentile, negative ones from their 1st.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lt_monitor.events.escaping import printable
from lt_monitor.runs.attempts import Run
from lt_monitor.runs.curves import (
    EARLY_SHARE,
    LOSS_WINDOW_SHARE,
    SMOOTH_POINTS,
    WINDOW_SHARE,
    Series,
    envelope,
    finite,
    settled_limits,
    smoothed,
)
from lt_monitor.runs.metrics import LOSS, Metric
from lt_monitor.views.palette import Palette
from lt_monitor.views.plot_options import PlotOptions, Range
from lt_monitor.views.tick_labels import compact
from lt_monitor.views.x_axis import XAxis
from lt_shared.console import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.lines import Line2D

POINTS = 6000
# If only a few steps of a long run are visible, smooth with more points; most points are outside the picture.
MAXIMUM_DETAIL = 8


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A run in a picture."""

    run: Run
    name: str
    colour: str
    x: XAxis


class Panel:
    """A panel for one metric. `curves` has one curve of `metric` for each run."""

    def __init__(
        self, metric: Metric, curves: Sequence[Series], drawn: Sequence[Drawn], options: PlotOptions, colours: Palette
    ) -> None:
        self.metric = metric
        self._drawn = drawn
        self._curves = curves
        self._options = options
        self._colours = colours

    @property
    def _is_loss(self) -> bool:
        return self.metric is LOSS

    @property
    def x_limits(self) -> tuple[float, float]:
        """The requested limits, else the limits of all steps. A logarithmic axis ignores positions that are not above zero."""
        low, high = self._options.x_range
        places = np.concatenate([one.x.positions for one in self._drawn])
        if self._options.log_x:
            places = places[places > 0]
            low = None if low is not None and low <= 0 else low
        extent = (float(places.min()), float(places.max())) if len(places) else (1.0, 2.0)
        return extent[0] if low is None else low, extent[1] if high is None else high

    def check_ranges(self) -> None:
        """Raises UsageError if no value of the metric is within the requested ranges."""
        drawn_curves = [
            (one.x.at(numbers), values) for one, (numbers, values) in zip(self._drawn, self._curves, strict=True) if len(values)
        ]
        positions, values = (np.concatenate(arrays) for arrays in zip(*drawn_curves, strict=True))
        is_shown = _is_within(positions, self._options.x_range)
        if not is_shown.any():
            _refuse("--x-range", self._options.x, positions)
        if not _is_within(values[is_shown], self._options.y_range).any():
            _refuse("--y-range", self.metric.short, values[is_shown])

    def draw(self, axis: "Axes", is_first: bool) -> None:
        """Draw everything except the marks that all panels share. All panels except the first are small."""
        shown: list[Series] = []
        logged: list[np.ndarray] = []
        for one, curve in zip(self._drawn, self._curves, strict=True):
            if len(curve[0]):
                raw, smooth = self._draw_curve(axis, one, curve, is_first)
                logged.append(raw)
                shown.append(smooth)
            if self._is_loss:
                shown += self._draw_validation(axis, one)
        references = self._draw_references(axis) if self._is_loss else []
        low, high = self._loss_limits(shown, references) if self._is_loss else self._limits(logged)
        if is_first:
            requested = [None if end is None or (end <= 0 and self._options.log_y) else end for end in self._options.y_range]
            low, high = (computed if end is None else end for end, computed in zip(requested, (low, high), strict=True))
        # Before the scale: with limits of its own, a logarithmic axis overflows at the largest numbers.
        axis.set_ylim(low, high if high > low else low + (abs(low) or 1.0))
        if self._options.log_y:
            axis.set_yscale("log")
        self._format_y(axis, is_first)
        axis.set_title(self.metric.label, loc="left", fontsize=9.5)

    def legend_entries(self) -> list["Line2D"]:
        """The legend: each run with the mean of the last tenth of its lines, and the meaning of the circles."""
        from matplotlib.lines import Line2D

        single = len(self._drawn) == 1
        entries = []
        for one, (_, values) in zip(self._drawn, self._curves, strict=True):
            name = one.name if not single else "training" if self._is_loss else self.metric.short
            mean = values[-max(1, len(values) // 10) :].mean() if len(values) else None
            last = "-" if mean is None else f"{mean:.3f}" if self._is_loss else compact(mean)
            entries.append(Line2D([], [], color=one.colour, linewidth=1.8, label=f"{name}  {last}"))
        losses = [loss for one in self._drawn for loss in self._validation(one)[1]] if self._is_loss else []
        if losses:
            colour, label = (
                (self._drawn[0].colour, f"validation  {losses[-1]:.3f}") if single else (self._colours.muted, "validation")
            )
            entries.append(Line2D([], [], label=label, **self._circle(colour)))
        return entries

    def _draw_curve(self, axis: "Axes", one: Drawn, curve: Series, is_first: bool) -> tuple[np.ndarray, Series]:
        """Draw the logged values faintly and their smooth curve. Return the visible values and the smooth curve."""
        low, high = self.x_limits
        width = 1.8 if is_first else 1.2
        steps, values = curve
        places = one.x.at(steps)
        visible = (places >= low) & (places <= high)
        raw = places, values
        if self._options.smooth_steps == 0:
            axis.plot(*envelope(_around(raw, visible), POINTS), color=one.colour, linewidth=0.7 * width, zorder=3, **_dot(curve))
            return values[visible], raw
        faint: dict[str, Any] = {"alpha": 0.28, "linewidth": 0.7} if is_first else {"alpha": 0.3, "linewidth": 0.6}
        axis.plot(*envelope(_around(raw, visible), POINTS), color=one.colour, zorder=2, **faint)
        detail = min(MAXIMUM_DETAIL, len(steps) // max(1, int(visible.sum())))
        share = LOSS_WINDOW_SHARE if self._is_loss else WINDOW_SHARE
        smooth_steps, medians = smoothed(curve, share, self._options.smooth_steps, SMOOTH_POINTS * max(1, detail))
        smooth = one.x.at(smooth_steps), medians
        # If a point stands for several steps, draw a level line to the next point: a slope would begin to rise before the event.
        style = "steps-post" if len(smooth_steps) < len(steps) else "default"
        axis.plot(*smooth, drawstyle=style, color=one.colour, linewidth=width, zorder=3, **_dot(curve))
        return values[visible], smooth

    def _validation(self, one: Drawn) -> Series:
        with_loss = [event for event in one.run.evaluations if event["loss"] is not None]
        steps, losses = (np.array([event[field] for event in with_loss], np.float64) for field in ("step", "loss"))
        return finite(one.x.at(steps), losses)

    def _draw_validation(self, axis: "Axes", one: Drawn) -> list[Series]:
        validation = self._validation(one)
        if not len(validation[0]):
            return []
        axis.plot(*validation, zorder=4, **self._circle(one.colour))
        return [validation]

    def _circle(self, colour: str) -> dict[str, Any]:
        return {
            "linestyle": "none",
            "marker": "o",
            "markersize": 5,
            "markerfacecolor": self._colours.background,
            "markeredgewidth": 1.4,
            "color": colour,
        }

    def _draw_references(self, axis: "Axes") -> list[float]:
        for name, value in self._options.references:
            axis.axhline(value, color=self._colours.ink, linewidth=0.9, dashes=(6, 3), zorder=2)
            text = f"{printable(name, 60)} {value:g}"
            place: dict[str, Any] = {"xycoords": axis.get_yaxis_transform(), "textcoords": "offset points", "ha": "right"}
            axis.annotate(text, (0.995, value), (0, 3), color=self._colours.ink, **place)
        return [value for _, value in self._options.references]

    def _loss_limits(self, shown: Sequence[Series], references: Sequence[float]) -> tuple[float, float]:
        # On a logarithmic axis the beginning is most of the picture.
        settled = settled_limits(shown, *self.x_limits, early_share=0.0 if self._options.log_x else EARLY_SHARE)
        ends = [*(settled or ()), *references]
        if self._options.log_y:
            ends = [end for end in ends if end > 0]
            return (min(ends) / 1.05, max(ends) * 1.05) if ends else (1.0, 10.0)
        low, high = min(ends, default=0.0), max(ends, default=1.0)
        margin = 0.06 * (high - low) or 0.5
        return low - margin, high + margin

    def _limits(self, logged: Sequence[np.ndarray]) -> tuple[float, float]:
        values = np.concatenate([*logged, np.empty(0)])
        if self._options.log_y:
            values = values[values > 0]
            return (float(values.min()) / 1.2, float(values.max()) * 1.2) if len(values) else (1.0, 10.0)
        if not len(values):
            return 0.0, 1.0
        return min(0.0, float(np.quantile(values, 0.01)) * 1.15), max(0.0, float(np.quantile(values, 0.99)) * 1.15)

    def _format_y(self, axis: "Axes", is_first: bool) -> None:
        from matplotlib.ticker import FuncFormatter

        if self._options.log_y or not is_first:
            low, high = axis.get_ylim()
            set_ticks(axis.yaxis, (low, high), self._options.log_y, 5 if is_first else 3)
        if not self._is_loss or self._options.log_y:
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))


def set_ticks(axis: "Axis", limits: tuple[float, float], is_log: bool, count: int, integer: bool = False) -> None:
    """Set few ticks at round numbers. A logarithmic axis of more than a decade has powers of ten, or 1, 2 and 5 times them."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    low, high = limits
    if is_log and low > 0 and high > 10 * low:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1000 * low else (1.0,)))
    else:
        axis.set_major_locator(MaxNLocator(count, integer=integer))
    if is_log:
        axis.set_minor_locator(NullLocator())


def _around(curve: Series, visible: np.ndarray) -> Series:
    """Return the visible points and one more on either side, so that the line reaches the edges."""
    visible_indexes = np.flatnonzero(visible)
    if not len(visible_indexes):
        return curve[0][:0], curve[1][:0]
    around = slice(max(0, visible_indexes[0] - 1), visible_indexes[-1] + 2)
    return curve[0][around], curve[1][around]


def _dot(curve: Series) -> dict[str, Any]:
    """Return the style of a dot for a curve with one point, because a line through one point is invisible."""
    return {"marker": "o"} if len(curve[0]) == 1 else {}


def _is_within(values: np.ndarray, ends: Range) -> np.ndarray:
    low, high = ends
    return np.asarray((values >= (-np.inf if low is None else low)) & (values <= (np.inf if high is None else high)))


def _refuse(option: str, name: str, values: np.ndarray) -> None:
    raise UsageError(f"{option}: nothing is there", f"{name}: {compact(values.min())} to {compact(values.max())}")
