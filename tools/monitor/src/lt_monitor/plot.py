"""`lt-monitor plot`: the loss curves of runs as one PNG, with gradient norm and speed below.

The raw loss is drawn faint and its running mean strong. Where steps were lost and done again, the later attempt is drawn. The
limits follow the running mean, so one spike does not flatten the rest.
"""

import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lt_monitor import summary
from lt_monitor.curves import Series, medians, series, series_of, smoothed, sparkline, speed
from lt_monitor.log_files import STANDARD_INPUT
from lt_monitor.runs import Run, read
from lt_shared import storage
from lt_shared.console import BadData, UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

References = Sequence[tuple[str, float]]

COLOURS = ("#2563a8", "#d9622b", "#3c8d5a", "#8a4fa3", "#b8860b", "#c2476b", "#4f7f8f", "#6b6b6b")
INK = "#2f3437"
MUTED = "#8b9298"
GRID = "#e6e9ec"
DPI = 150
MANY_CHECKPOINTS = 30
LEGEND_WIDTH = 100


def parse_reference(text: str) -> tuple[str, float]:
    """`NAME=VALUE` of --reference. Raises UsageError when it is something else."""
    name, equals, value = text.rpartition("=")
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not equals or not name or not np.isfinite(number):
        raise UsageError(f"--reference {text}: expected NAME=VALUE, e.g. unigram=6.53")
    return name, number


def plot(patterns: Sequence[str], output: str, references: References) -> None:
    """Draw the runs in the logs to the PNG file `output`, or to stdout for `-`. A terminal on stderr gets a sparkline of each.

    Raises: NoInput when a log is missing, BadData when no run has a loss, CannotCreate when the output cannot be written.
    """
    if output != STANDARD_INPUT and not output.lower().endswith(".png"):
        raise UsageError(f"{output}: the picture is a PNG", f"write to {os.path.splitext(output)[0]}.png")
    if output == STANDARD_INPUT and sys.stdout.isatty():
        raise UsageError("-: a PNG is nothing for a terminal", "redirect it or write to a file")
    runs = [run for run in read(patterns) if len(series(run, "loss")[0])]
    if not runs:
        raise BadData("no step has a loss", "all steps were skipped or not a number")
    picture = io.BytesIO()
    draw(runs, references).savefig(picture, format="png", dpi=DPI)
    if output == STANDARD_INPUT:
        sys.stdout.buffer.write(picture.getvalue())
    else:
        storage.write_bytes(output, picture.getvalue())
    if sys.stderr.isatty():
        for run in runs:
            print(f"{run.name}  {sparkline(series(run, 'loss')[1])}", file=sys.stderr)


def draw(runs: Sequence[Run], references: References) -> "Figure":
    """The picture: a loss panel, and below it those of gradient norm and speed that any run has."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    panels = [("gradient norm", [series(run, "grad_norm") for run in runs])]
    speeds = [speed(run) for run in runs]
    if any(len(steps) for steps, _ in speeds):
        panels.append(("tokens/s", speeds))
    else:
        panels.append(("s/step", [series(run, "step_seconds") for run in runs]))
    panels = [(title, curves) for title, curves in panels if any(len(steps) for steps, _ in curves)]

    with rc_context(_style()):
        figure = Figure(figsize=(10, 5 + 1.35 * len(panels)), layout=ConstrainedLayoutEngine(h_pad=0.08, w_pad=0.12, hspace=0.03))
        FigureCanvasAgg(figure)
        axes = list(
            figure.subplots(1 + len(panels), 1, sharex=True, squeeze=False, height_ratios=[3.6] + [1] * len(panels))[:, 0]
        )
        names = _short_names([run.name for run in runs])
        _draw_loss(axes[0], runs, names, references)
        for axis, (title, curves) in zip(axes[1:], panels, strict=True):
            _draw_small(axis, title, curves)
        _format_axes(axes)
        for axis in axes:
            for run, colour in zip(runs, _colours(runs), strict=True):
                for step in run.resumed_at:
                    axis.axvline(step, color=MUTED if len(runs) == 1 else colour, linewidth=0.8, dashes=(2, 3), zorder=1)
        figure.suptitle(names[0] if len(runs) == 1 else f"{len(runs)} runs", x=0.012, ha="left", fontweight="bold", fontsize=13)
    return figure


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
    }


def _colours(runs: Sequence[Run]) -> list[str]:
    return [COLOURS[index % len(COLOURS)] for index in range(len(runs))]


def _short_names(names: list[str]) -> list[str]:
    """Names without the directories that all of them share."""
    directories = [os.path.dirname(name) for name in names]
    if len(names) == 1 or len({os.path.isabs(name) for name in names}) > 1 or any(storage.is_remote(name) for name in names):
        return names
    shared = os.path.commonpath(directories)
    return [os.path.relpath(name, shared) if shared else name for name in names]


def _draw_loss(axis: "Axes", runs: Sequence[Run], names: list[str], references: References) -> None:
    from matplotlib.lines import Line2D

    handles = []
    shown = []
    for run, name, colour in zip(runs, names, _colours(runs), strict=True):
        steps, losses = series(run, "loss")
        smooth = smoothed(losses)
        shown.append(smooth)
        axis.plot(steps, losses, color=colour, alpha=0.28, linewidth=0.7, zorder=2)
        axis.plot(steps, smooth, color=colour, linewidth=1.8, zorder=3, marker="o" if len(steps) == 1 else None)
        label = "training" if len(runs) == 1 else name
        handles.append(Line2D([], [], color=colour, linewidth=1.8, label=f"{label}  {summary.summarize(run).loss_mean:.3f}"))
        validation = series_of([(step, event["loss"]) for step, event in run.evaluations.items() if event["loss"] is not None])
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
            shown.append(validation[1])
        size = 5 if len(run.checkpoints) <= MANY_CHECKPOINTS else 2.5
        saved, heights = list(run.checkpoints), [0.012] * len(run.checkpoints)
        marks: dict[str, Any] = {"linestyle": "none", "marker": "^", "markersize": size, "color": colour}
        axis.plot(saved, heights, transform=axis.get_xaxis_transform(), clip_on=False, zorder=5, **marks)
    if any(run.checkpoints for run in runs):
        handles.append(Line2D([], [], linestyle="none", marker="^", markersize=5, color=_mark_colour(runs), label="checkpoint"))
    if any(run.resumed_at for run in runs):
        handles.append(Line2D([], [], color=MUTED, linewidth=0.8, dashes=(2, 3), label="resumed"))
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
            f"{name} {value:g}",
            (0.995, value),
            (0, 3),
            xycoords=axis.get_yaxis_transform(),
            textcoords="offset points",
            color=INK,
            ha="right",
        )
    _limit_loss(axis, np.concatenate([*shown, np.array([value for _, value in references])]))
    axis.set_title("loss (nats per token)", loc="left", fontsize=9.5)


def _mark_colour(runs: Sequence[Run]) -> str:
    return COLOURS[0] if len(runs) == 1 else MUTED


def _limit_loss(axis: "Axes", shown: np.ndarray) -> None:
    """Limits by what is smooth, so that a single spike in the raw curve does not flatten everything else."""
    low, high = float(shown.min()), float(shown.max())
    margin = 0.06 * (high - low) or 0.5
    axis.set_ylim(low - margin, high + margin)


def _draw_small(axis: "Axes", title: str, curves: Sequence[Series]) -> None:
    for (steps, values), colour in zip(curves, (COLOURS[index % len(COLOURS)] for index in range(len(curves))), strict=True):
        if len(steps):
            axis.plot(steps, values, color=colour, alpha=0.3, linewidth=0.6)
            axis.plot(*medians((steps, values)), color=colour, linewidth=1.2)
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
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes[-1].xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes[-1].xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes[-1].set_xlabel("step")
    axes[0].margins(x=0.01)
