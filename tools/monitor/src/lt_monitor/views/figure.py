"""The loss curves of runs as one PNG or SVG, with gradient norm and speed below.

The raw loss is drawn faint and its running median strong. Where steps were lost and done again, the later attempt is drawn. The
limits follow the running median, so one spike does not flatten the rest. Checkpoints, restarts and faults are marked.
"""

import io
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lt_monitor.events.escaping import printable
from lt_monitor.runs import speed
from lt_monitor.runs.attempts import Run
from lt_monitor.runs.curves import LOSS_WINDOW_SHARE, WINDOW_SHARE, Series, envelope, settled_limits, smoothed
from lt_monitor.runs.speed import Known, Sizes
from lt_monitor.views.annotations import annotations_of
from lt_monitor.views.tick_labels import compact

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

References = Sequence[tuple[str, float]]

COLOURS = ("#2563a8", "#d9622b", "#3c8d5a", "#8a4fa3", "#b8860b", "#c2476b", "#4f7f8f", "#6b6b6b")
INK = "#2f3437"
MUTED = "#8b9298"
GRID = "#e6e9ec"
FAULT = "#c8321f"
DPI = 150
MANY_CHECKPOINTS = 30
LEGEND_WIDTH = 100
POINTS = 6000


def render(form: str, runs: Sequence[Run], names: Sequence[str], known: Known, references: References) -> bytes:
    """The picture as a file of the format `form` (png, svg); the same input gives the same bytes."""
    from matplotlib import rc_context, rcdefaults, rcParams

    picture = io.BytesIO()
    with warnings.catch_warnings(), rc_context():
        # Not those of a matplotlibrc in the current directory, which may have every text set by LaTeX.
        rcdefaults()
        rcParams["svg.hashsalt"] = "lt-monitor"
        # A name in a script that the font lacks is drawn as boxes; nothing can be done about it here.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        metadata = {"Date": None} if form == "svg" else None
        draw(runs, names, known, references).savefig(picture, format=form, dpi=DPI, metadata=metadata)
    return picture.getvalue()


def draw(runs: Sequence[Run], names: Sequence[str], known: Known, references: References) -> "Figure":
    """The picture: a loss panel, and below it those of gradient norm and speed that any run has."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    names = [printable(name, 100) for name in names]
    panels = [(title, curves) for title, curves in _panels(runs, known) if any(len(steps) for steps, _ in curves)]
    with rc_context(_style()):
        figure = Figure(figsize=(10, 5 + 1.35 * len(panels)), layout=ConstrainedLayoutEngine(h_pad=0.08, w_pad=0.12, hspace=0.03))
        FigureCanvasAgg(figure)
        axes = list(
            figure.subplots(1 + len(panels), 1, sharex=True, squeeze=False, height_ratios=[3.6] + [1] * len(panels))[:, 0]
        )
        _draw_loss(axes[0], runs, names, references)
        for axis, (title, curves) in zip(axes[1:], panels, strict=True):
            _draw_small(axis, title, curves)
        _format_axes(axes)
        for run, colour in zip(runs, _colours(runs), strict=True):
            _draw_annotations(axes, run, MUTED if len(runs) == 1 else colour)
        figure.suptitle(names[0] if len(runs) == 1 else f"{len(runs)} runs", x=0.012, ha="left", fontweight="bold", fontsize=13)
    return figure


def _panels(runs: Sequence[Run], known: Known) -> list[tuple[str, list[Series]]]:
    measure, rates = speed.speed_curves([run.steps for run in runs], [Sizes.of(run.arguments, known) for run in runs])
    return [("gradient norm", [run.steps.finite("grad_norm") for run in runs]), (measure.short, rates)]


def _draw_annotations(axes: Sequence["Axes"], run: Run, colour: str) -> None:
    """Restarts as dotted lines, faults as red ones, each with a sign above the loss."""
    found = annotations_of(run)
    top = axes[0].get_xaxis_transform()
    style: dict[str, Any] = {"linestyle": "none", "transform": top, "clip_on": False, "zorder": 6}
    for axis in axes:
        for annotation in found:
            if annotation.kind == "restart":
                axis.axvline(annotation.step, color=colour, linewidth=0.8, dashes=(2, 3), zorder=1)
            elif annotation.kind == "fault":
                axis.axvline(annotation.step, color=FAULT, linewidth=0.8, alpha=0.7, zorder=1)
    for kind, sign in (("fault", "D"), ("nan", "x")):
        steps = [annotation.step for annotation in found if annotation.kind == kind]
        if steps:
            axes[0].plot(steps, [1.0] * len(steps), marker=sign, markersize=5, color=FAULT, **style)


def _style() -> Any:
    return {
        "font.family": "DejaVu Sans",
        "font.size": 9.5,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": "#c3c9ce",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": GRID,
        "grid.linewidth": 0.8,
        "axes.axisbelow": True,
        "xtick.color": "#c3c9ce",
        "ytick.color": "#c3c9ce",
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "figure.facecolor": "white",
        "agg.path.chunksize": 20000,
        "text.parse_math": False,
    }


def _colours(runs: Sequence[Run]) -> list[str]:
    return [COLOURS[index % len(COLOURS)] for index in range(len(runs))]


def _draw_loss(axis: "Axes", runs: Sequence[Run], names: Sequence[str], references: References) -> None:
    from matplotlib.lines import Line2D

    handles = []
    shown = []
    for run, name, colour in zip(runs, names, _colours(runs), strict=True):
        steps, losses = run.steps.finite("loss")
        calm = smoothed((steps, losses), LOSS_WINDOW_SHARE)
        shown.append(calm)
        axis.plot(*envelope((steps, losses), POINTS), color=colour, alpha=0.28, linewidth=0.7, zorder=2)
        _draw_smooth(axis, calm, len(steps), color=colour, linewidth=1.8, zorder=3, marker="o" if len(steps) == 1 else None)
        label = "training" if len(runs) == 1 else name
        handles.append(Line2D([], [], color=colour, linewidth=1.8, label=f"{label}  {_last_tenth(losses)}"))
        evaluations = [event for event in run.evaluations if event["loss"] is not None]
        validation = np.array([event["step"] for event in evaluations]), np.array([event["loss"] for event in evaluations])
        if len(validation[0]):
            style: dict[str, Any] = {
                "marker": "o",
                "markersize": 5,
                "markerfacecolor": "white",
                "markeredgewidth": 1.4,
                "color": colour,
            }
            axis.plot(*validation, linestyle="none", zorder=4, **style)
            if len(runs) == 1:
                label = f"validation  {validation[1][-1]:.3f}"
                handles.append(Line2D([], [], linestyle="none", label=label, **style))
            shown.append(validation)
        saved = [event["step"] for event in run.checkpoints]
        size = 5 if len(saved) <= MANY_CHECKPOINTS else 2.5
        heights = [0.012] * len(saved)
        triangle: dict[str, Any] = {"linestyle": "none", "marker": "^", "markersize": size, "color": colour}
        if saved:
            axis.plot(saved, heights, transform=axis.get_xaxis_transform(), clip_on=False, zorder=5, **triangle)
    if any(run.checkpoints for run in runs):
        handles.append(Line2D([], [], linestyle="none", marker="^", markersize=5, color=_legend_colour(runs), label="checkpoint"))
    kinds = {annotation.kind for run in runs for annotation in annotations_of(run)}
    if "restart" in kinds:
        handles.append(Line2D([], [], color=MUTED, linewidth=0.8, dashes=(2, 3), label="resumed"))
    if "fault" in kinds:
        handles.append(Line2D([], [], color=FAULT, linestyle="none", marker="D", markersize=5, label="fault"))
    if "nan" in kinds:
        handles.append(Line2D([], [], color=FAULT, linestyle="none", marker="x", markersize=5, label="not a number"))
    if len(runs) > 1 and any(run.evaluations for run in runs):
        handles.insert(
            len(runs),
            Line2D([], [], linestyle="none", marker="o", markersize=5, markerfacecolor="white", color=MUTED, label="validation"),
        )
    columns = max(1, min(len(handles), LEGEND_WIDTH // (6 + max(len(str(handle.get_label())) for handle in handles))))
    axis.legend(
        handles=handles,
        ncols=columns,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        frameon=False,
        borderaxespad=0.2,
        columnspacing=1.4,
    )
    for name, value in references:
        axis.axhline(value, color=INK, linewidth=0.9, dashes=(6, 3), zorder=2)
        axis.annotate(
            f"{printable(name, 60)} {value:g}",
            (0.995, value),
            (0, 3),
            xycoords=axis.get_yaxis_transform(),
            textcoords="offset points",
            color=INK,
            ha="right",
        )
    _limit_loss(axis, shown, [value for _, value in references])
    axis.set_title("loss (nats per token)", loc="left", fontsize=9.5)


def _draw_smooth(axis: "Axes", smooth: Series, raw_points: int, **style: Any) -> None:
    """A line from point to point, or where each point stands for a stretch of steps, level up to the next: never early."""
    axis.plot(*smooth, drawstyle="steps-post" if len(smooth[0]) < raw_points else "default", **style)


def _last_tenth(losses: np.ndarray) -> str:
    return f"{losses[-max(1, len(losses) // 10) :].mean():.3f}"


def _legend_colour(runs: Sequence[Run]) -> str:
    return COLOURS[0] if len(runs) == 1 else MUTED


def _limit_loss(axis: "Axes", shown: Sequence[Series], references: Sequence[float]) -> None:
    """Limits by what is smooth, so that a single spike in the raw curve does not flatten everything else."""
    first, last = min(int(steps[0]) for steps, _ in shown), max(int(steps[-1]) for steps, _ in shown)
    limits = settled_limits(shown, first, last)
    assert limits is not None
    low, high = min(limits[0], *references, limits[1]), max(limits[1], *references, limits[0])
    margin = 0.06 * (high - low) or 0.5
    axis.set_ylim(low - margin, high + margin)


def _draw_small(axis: "Axes", title: str, curves: Sequence[Series]) -> None:
    for (steps, values), colour in zip(curves, (COLOURS[index % len(COLOURS)] for index in range(len(curves))), strict=True):
        if len(steps):
            axis.plot(*envelope((steps, values), POINTS), color=colour, alpha=0.3, linewidth=0.6)
            _draw_smooth(axis, smoothed((steps, values), WINDOW_SHARE), len(steps), color=colour, linewidth=1.2)
    everything = np.concatenate([values for _, values in curves])
    top = float(np.quantile(everything, 0.99)) * 1.15
    if top > 0:
        axis.set_ylim(0, top)
    axis.set_title(title, loc="left", fontsize=9.5)


def _format_axes(axes: Sequence["Axes"]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for axis in axes:
        axis.tick_params(length=3)
    for axis in axes[1:]:
        axis.yaxis.set_major_locator(MaxNLocator(3))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
    axes[-1].xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes[-1].xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes[-1].set_xlabel("step")
    axes[0].margins(x=0.01)
