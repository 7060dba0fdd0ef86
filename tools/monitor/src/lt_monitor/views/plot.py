"""`lt-monitor plot`: the curves of runs as a picture, as a report to open in a browser, or as lines of text."""

import os
import sys
from collections.abc import Sequence

import numpy as np

from lt_monitor.logs.log_files import STANDARD_INPUT
from lt_monitor.runs import metrics, run_loader, scores
from lt_monitor.runs.attempts import Run
from lt_monitor.runs.speed import RunFacts
from lt_monitor.views import sparklines
from lt_monitor.views.plot_options import PlotOptions
from lt_shared.console import UsageError
from lt_shared.files import storage

FORMATS = ("png", "svg", "pdf", "html")


def plot(
    patterns: Sequence[str], output: str | None, run_facts: RunFacts, options: PlotOptions, evals: Sequence[str] = ()
) -> None:
    """Draw the runs in the logs to the file `output`, in the format of its suffix, or as a PNG to stdout for `-`.

    `evals` are directories with the scores of checkpoints, one for each run.
    Without an output, print sparklines; with one, they go to a stderr that is a terminal.

    Raises: NoInput if a log is missing; BadData if no run has a loss and no other metric is requested, or if a log lacks the
    unit of the x axis; UsageError for a metric that no run has, and for options that the output cannot show; CannotCreate if
    the output cannot be written.
    """
    form = _format(output) if output is not None else ""
    unused = options.of_pictures_only()
    if form in ("", "html") and unused:
        what = "the report zooms and has the colours of its reader" if form else "sparklines have no axes"
        raise UsageError(f"{unused[0]} is for pictures: {what}", "write to a .png, .svg or .pdf file with -o")
    runs = run_loader.join_by_checkpoints(run_loader.read(patterns, or_starting=form == "html"))
    scores.attach(runs, evals)
    if not options.metrics and form != "html":
        runs = [run for run in runs if np.isfinite(run.steps.column("loss")).any()] or runs[:1]
    names = short_names([run.name for run in runs])
    if output is None:
        print("\n\n".join(_sparklines(runs, names, run_facts, options)))
        return
    content = _content(form, runs, names, run_facts, options)
    if output == STANDARD_INPUT:
        sys.stdout.buffer.write(content)
    else:
        storage.write_bytes(output, content)
    if sys.stderr.isatty():
        print("\n".join(_sparklines(runs, names, run_facts, options)), file=sys.stderr)


def _sparklines(runs: Sequence[Run], names: Sequence[str], run_facts: RunFacts, options: PlotOptions) -> list[str]:
    """Sparklines for each run.

    A requested metric must exist in some run. Without a request, each run shows the metrics that it has.
    """
    if options.metrics:
        run_curves = metrics.curves_of(runs, run_facts, options.metrics)
        of_runs = [[(metric, curves[index]) for metric, curves in run_curves] for index in range(len(runs))]
    else:
        of_runs = [[(metric, curve) for metric, (curve,) in metrics.curves_of([run], run_facts)] for run in runs]
    return [sparklines.of_run(run, name, run_curves) for run, name, run_curves in zip(runs, names, of_runs, strict=True)]


def _format(output: str) -> str:
    if output == STANDARD_INPUT:
        if sys.stdout.isatty():
            raise UsageError("-: a terminal cannot show a PNG", "redirect it, write to a file, or leave out -o for sparklines")
        return "png"
    form = os.path.splitext(output)[1].lower().removeprefix(".")
    if form not in FORMATS:
        raise UsageError(f"{output}: not a known image format", "end the name in .png, .svg, .pdf or .html")
    return form


def _content(form: str, runs: Sequence[Run], names: Sequence[str], run_facts: RunFacts, options: PlotOptions) -> bytes:
    if form == "html":
        from lt_monitor.views import html_report

        return html_report.build(runs, names, run_facts, options).encode()
    from lt_monitor.views import figure

    return figure.render(form, runs, names, run_facts, options)


def short_names(names: list[str]) -> list[str]:
    """Names without their common directories."""
    directories = [os.path.dirname(name) for name in names]
    if len(names) < 2 or len({os.path.isabs(name) for name in names}) > 1 or any(storage.is_remote(name) for name in names):
        return names
    shared = os.path.commonpath(directories)
    return [os.path.relpath(name, shared) if shared else name for name in names]
