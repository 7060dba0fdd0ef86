"""`lt-monitor plot`: the curves of runs as a picture, as a report to open in a browser, or as lines of text."""

import os
import sys
from collections.abc import Sequence

import numpy as np

from lt_monitor.logs.log_files import STANDARD_INPUT
from lt_monitor.runs import run_loader
from lt_monitor.runs.attempts import Run
from lt_monitor.runs.speed import Known
from lt_monitor.views import sparklines
from lt_shared import storage
from lt_shared.console import BadData, UsageError

FORMATS = ("png", "svg", "html")

References = Sequence[tuple[str, float]]


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


def plot(patterns: Sequence[str], output: str | None, known: Known, references: References) -> None:
    """Draw the runs in the logs: to the file `output`, whose ending says what it is, or as a PNG to stdout for `-`.

    Without an output, print sparklines; with one, they go to a stderr that is a terminal.

    Raises: NoInput when a log is missing, BadData when no run has a loss, CannotCreate when the output cannot be written.
    """
    form = _format(output) if output is not None else ""
    runs = run_loader.join_by_checkpoints(run_loader.read(patterns))
    runs = [run for run in runs if np.isfinite(run.steps.column("loss")).any()]
    if not runs:
        raise BadData("no step has a loss", "all steps were skipped or their loss was NaN")
    names = short_names([run.name for run in runs])
    if output is None:
        print("\n\n".join(sparklines.of_run(run, name, known) for run, name in zip(runs, names, strict=True)))
        return
    content = _content(form, runs, names, known, references)
    if output == STANDARD_INPUT:
        sys.stdout.buffer.write(content)
    else:
        storage.write_bytes(output, content)
    if sys.stderr.isatty():
        for run, name in zip(runs, names, strict=True):
            print(sparklines.of_run(run, name, known), file=sys.stderr)


def _format(output: str) -> str:
    if output == STANDARD_INPUT:
        if sys.stdout.isatty():
            raise UsageError("-: a terminal cannot show a PNG", "redirect it, write to a file, or leave out -o for sparklines")
        return "png"
    form = os.path.splitext(output)[1].lower().removeprefix(".")
    if form not in FORMATS:
        raise UsageError(f"{output}: not a known image format", "end the name in .png, .svg or .html")
    return form


def _content(form: str, runs: Sequence[Run], names: Sequence[str], known: Known, references: References) -> bytes:
    if form == "html":
        from lt_monitor.views import html_report

        return html_report.build(runs, names, known, references).encode()
    from lt_monitor.views import figure

    return figure.render(form, runs, names, known, references)


def short_names(names: list[str]) -> list[str]:
    """Names without the directories that all of them share."""
    directories = [os.path.dirname(name) for name in names]
    if len(names) == 1 or len({os.path.isabs(name) for name in names}) > 1 or any(storage.is_remote(name) for name in names):
        return names
    shared = os.path.commonpath(directories)
    return [os.path.relpath(name, shared) if shared else name for name in names]
