"""The curves of runs as one PNG, SVG or PDF: a large panel for the first metric, which is the loss by default, small ones below.

Logged values are drawn faint, their running median strong. If steps were lost and repeated, the later attempt is drawn.
Checkpoints, restarts and faults are marked.
"""

import io
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lt_monitor.events.escaping import printable
from lt_monitor.runs import metrics
from lt_monitor.runs.attempts import Run
from lt_monitor.runs.speed import RunFacts
from lt_monitor.views import figure_panel, palette
from lt_monitor.views.annotations import annotations_of
from lt_monitor.views.figure_panel import Drawn, Panel
from lt_monitor.views.palette import Palette
from lt_monitor.views.plot_options import NO_RANGE, PlotOptions
from lt_monitor.views.x_axis import XAxis, tick_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 150
MANY_CHECKPOINTS = 30
LEGEND_WIDTH = 100
X_TITLES = {"step": "step", "tokens": "tokens", "hours": "hours since the run began"}
# Without dates, two files with the same picture are identical.
DATES = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


def render(form: str, runs: Sequence[Run], names: Sequence[str], run_facts: RunFacts, options: PlotOptions) -> bytes:
    """The picture as a file of the format `form` (png, svg, pdf); the same input gives the same bytes."""
    from matplotlib import rc_context, rcdefaults, rcParams

    picture = io.BytesIO()
    with warnings.catch_warnings(), rc_context():
        # Ignore a matplotlibrc in the current directory, which may set every text by LaTeX.
        rcdefaults()
        rcParams["svg.hashsalt"] = "lt-monitor"
        # A name in a script that the font lacks is drawn as boxes; nothing can be done about it here.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        draw(runs, names, run_facts, options).savefig(picture, format=form, dpi=DPI, metadata=DATES.get(form))
    return picture.getvalue()


def draw(runs: Sequence[Run], names: Sequence[str], run_facts: RunFacts, options: PlotOptions) -> "Figure":
    """The picture: a panel for each metric that any run has.

    Raises: UsageError for a metric that none has and for a range without any of its values, BadData for an x axis that a log does
    not show.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    names = [printable(name, 100) for name in names]
    colours = palette.DARK if options.dark else palette.LIGHT
    drawn = [
        Drawn(run, name, colours.run(index), XAxis.of(run, options.x, run_facts))
        for index, (run, name) in enumerate(zip(runs, names, strict=True))
    ]
    panels = [
        Panel(metric, curves, drawn, options, colours) for metric, curves in metrics.curves_of(runs, run_facts, options.metrics)
    ]
    panels[0].check_ranges()
    with rc_context(colours.settings()):
        size = 10, 5 + 1.35 * (len(panels) - 1)
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(h_pad=0.08, w_pad=0.12, hspace=0.03))
        FigureCanvasAgg(figure)
        heights = [3.6] + [1] * (len(panels) - 1)
        axes = list(figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0])
        _format_x(axes, panels, options)
        for index, (panel, axis) in enumerate(zip(panels, axes, strict=True)):
            panel.draw(axis, is_first=index == 0)
        _draw_checkpoints(axes[0], drawn)
        for one in drawn:
            _draw_annotations(axes, one, colours.muted if len(runs) == 1 else one.colour, colours)
        _draw_legend(axes[0], panels[0], drawn, colours)
        figure.suptitle(names[0] if len(runs) == 1 else f"{len(runs)} runs", x=0.012, ha="left", fontweight="bold", fontsize=13)
    return figure


def _draw_checkpoints(axis: "Axes", drawn: Sequence[Drawn]) -> None:
    low, high = sorted(axis.get_xlim())
    for one in drawn:
        saved = one.x.at([event["step"] for event in one.run.checkpoints])
        saved = saved[(saved >= low) & (saved <= high)]
        size = 5 if len(saved) <= MANY_CHECKPOINTS else 2.5
        style: dict[str, Any] = {"linestyle": "none", "marker": "^", "markersize": size, "color": one.colour}
        if len(saved):
            axis.plot(saved, [0.012] * len(saved), transform=axis.get_xaxis_transform(), clip_on=False, zorder=5, **style)


def _draw_annotations(axes: Sequence["Axes"], one: Drawn, colour: str, colours: Palette) -> None:
    """Restarts as dotted lines, faults as red ones, each with a sign above the first panel."""
    annotations = annotations_of(one.run)
    low, high = sorted(axes[0].get_xlim())
    placed = [(annotation.kind, place) for annotation in annotations for place in one.x.at([annotation.step])]
    places = [(kind, place) for kind, place in placed if low <= place <= high]
    top = axes[0].get_xaxis_transform()
    style: dict[str, Any] = {"linestyle": "none", "transform": top, "clip_on": False, "zorder": 6}
    for axis in axes:
        for kind, place in places:
            if kind == "restart":
                axis.axvline(place, color=colour, linewidth=0.8, dashes=(2, 3), zorder=1)
            elif kind == "fault":
                axis.axvline(place, color=colours.fault, linewidth=0.8, alpha=0.7, zorder=1)
    for kind, sign in (("fault", "D"), ("nan", "x")):
        shown = [place for found_kind, place in places if found_kind == kind]
        if shown:
            axes[0].plot(shown, [1.0] * len(shown), marker=sign, markersize=5, color=colours.fault, **style)


def _draw_legend(axis: "Axes", panel: Panel, drawn: Sequence[Drawn], colours: Palette) -> None:
    from matplotlib.lines import Line2D

    single = len(drawn) == 1
    handles = panel.legend_entries()
    mark: dict[str, Any] = {"linestyle": "none", "markersize": 5}
    if any(one.run.checkpoints for one in drawn):
        handles.append(Line2D([], [], marker="^", color=drawn[0].colour if single else colours.muted, label="checkpoint", **mark))
    kinds = {annotation.kind for one in drawn for annotation in annotations_of(one.run)}
    if "restart" in kinds:
        handles.append(Line2D([], [], color=colours.muted, linewidth=0.8, dashes=(2, 3), label="resumed"))
    if "fault" in kinds:
        handles.append(Line2D([], [], color=colours.fault, marker="D", label="fault", **mark))
    if "nan" in kinds:
        handles.append(Line2D([], [], color=colours.fault, marker="x", label="not a number", **mark))
    columns = max(1, min(len(handles), LEGEND_WIDTH // (6 + max(len(str(handle.get_label())) for handle in handles))))
    place: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1, 1), "frameon": False, "borderaxespad": 0.2}
    axis.legend(handles=handles, ncols=columns, columnspacing=1.4, **place)


def _format_x(axes: Sequence["Axes"], panels: Sequence[Panel], options: PlotOptions) -> None:
    from matplotlib.ticker import FuncFormatter

    axis = axes[-1]
    low, high = panels[0].x_limits
    for one in axes:
        one.tick_params(length=3)
        if options.log_x:
            one.set_xscale("log")
    if options.x_range != NO_RANGE or options.log_x:
        axis.set_xlim(low, high if high > low else low + 1)
    figure_panel.set_ticks(axis.xaxis, (low, high), options.log_x, 8, integer=options.x == "step")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda position, _: tick_label(options.x, position)))
    axis.set_xlabel(X_TITLES[options.x])
    axes[0].margins(x=0.01)
