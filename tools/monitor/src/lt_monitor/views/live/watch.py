"""`lt-monitor watch`: a live view of runs in a terminal, for people.

The logs are read anew whenever one of them has changed, so a log that is truncated, rotated or replaced needs no care. Reading
never takes more than a tenth of the time: the next look waits ten times as long as the last one took, however large the logs are.
"""

import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lt_monitor.events.escaping import printable
from lt_monitor.logs.log_files import STANDARD_INPUT, expand
from lt_monitor.runs import metrics, run_loader
from lt_monitor.runs.attempts import Run
from lt_monitor.runs.curves import Series, sparkline
from lt_monitor.runs.silence import Silence
from lt_monitor.runs.speed import Known, Sizes
from lt_monitor.runs.summary import Summary, summarize
from lt_monitor.views import plot, summary_table
from lt_shared import storage
from lt_shared.console import ToolError, UsageError

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.text import Text

LOOK_SHARE = 10
PANEL_LINES = 9
SPARK_WIDTH = 10
COLUMN_GAP = 3


@dataclasses.dataclass(frozen=True)
class View:
    """What is shown of one run."""

    name: str
    summary: Summary
    loss: Series
    rate: Series
    silence: Silence

    @classmethod
    def of(cls, run: Run, name: str, known: Known) -> "View":
        steps = run.steps
        sizes = Sizes.of(run.arguments, known)
        _, (rate,) = metrics.speed_curves([steps], [sizes])
        silence = Silence.of(run)
        return cls(printable(name), summarize(run, known, silence.updated), steps.finite("loss"), rate, silence)

    def at(self, now: float) -> "View":
        """The view as time goes by without a new line."""
        return dataclasses.replace(self, summary=self.summary.without_time_left()) if self.silence.is_too_long(now) else self


def watch(patterns: Sequence[str], known: Known, interval_seconds: float) -> None:
    """Show the runs until interrupted, looking at the logs every `interval_seconds` at most.

    Raises: UsageError without a terminal or for standard input; NoInput and BadData when the first look finds nothing to show.
    """
    if STANDARD_INPUT in patterns:
        raise UsageError("watch reads logs repeatedly, and standard input can be read only once", "write it to a file first")
    if not sys.stdout.isatty():
        raise UsageError("watch needs a terminal", "use lt-monitor summarize for a file or a pipe")
    from rich.console import Console
    from rich.live import Live

    logs = _Logs(patterns, known)
    logs.look()
    console = Console()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                live.update(render(logs.views, time.time(), *console.size, logs.trouble), refresh=True)
                time.sleep(max(interval_seconds, LOOK_SHARE * logs.look_seconds))
                logs.look_again()
        except KeyboardInterrupt:
            return


class _Logs:
    """The logs between two looks."""

    def __init__(self, patterns: Sequence[str], known: Known):
        self.patterns = patterns
        self.known = known
        self.views: list[View] = []
        self.trouble: str | None = None
        self.look_seconds = 0.0
        self._seen: list[tuple[object, ...]] = []

    def look(self) -> None:
        begin = time.monotonic()
        paths = expand(self.patterns, quiet=bool(self._seen))
        self._seen = _state(paths)
        runs = run_loader.join_by_checkpoints(run_loader.read(paths))
        names = plot.short_names([run.name for run in runs])
        self.views = [View.of(run, name, self.known) for run, name in zip(runs, names, strict=True)]
        self.look_seconds = time.monotonic() - begin

    def look_again(self) -> None:
        """Keep what was seen when the logs cannot be read for a while, as when a job is requeued."""
        try:
            if _state(expand(self.patterns, quiet=True)) != self._seen:
                self.look()
            self.trouble = None
        except (ToolError, OSError) as error:
            self.trouble = printable(error)


def _state(paths: Sequence[str]) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for path in paths:
        if storage.is_remote(path):
            found.append((path, time.monotonic()))
        else:
            status = os.stat(path)
            found.append((path, status.st_ino, status.st_size, status.st_mtime_ns))
    return found


def render(views: Sequence[View], now: float, width: int, height: int, trouble: str | None = None) -> "RenderableType":
    """The screen at the time `now`: a panel for each run, or a table where `height` lines have no room for them."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    views = [view.at(now) for view in views]
    if len(views) * PANEL_LINES + 1 <= height:
        parts += [_panel(view, now) for view in views]
    else:
        parts.append(_table(views, now, width))
    clock = time.strftime("%H:%M:%S", time.localtime(now))
    said, style = ("Ctrl-C ends", "dim") if trouble is None else (trouble, "red")
    parts.append(Text(f" {clock}  {said}", style=style))
    return Group(*parts)


def _panel(view: View, now: float) -> "RenderableType":
    from rich import box
    from rich.console import Group
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    summary = view.summary
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(style="dim", width=11)
    grid.add_column(ratio=1)
    grid.add_column(justify="right", no_wrap=True)
    rows = summary_table.ROWS
    share = min(1.0, summary.step / summary.total_steps) if summary.total_steps else 0.0
    left = rows["time left"](summary)
    where = _join(rows["step"](summary), left if left in ("-", "done") else f"{left} left")
    grid.add_row("step", ProgressBar(total=1.0, completed=share), where)
    grid.add_row("loss", _Spark(view.loss, "cyan"), _loss(summary))
    grid.add_row("speed", _Spark(view.rate, "green"), _join(rows["speed"](summary), _percent(summary)))
    validation, checkpoint = rows["validation"](summary), rows["checkpoint"](summary)
    grid.add_row("validation", Text(validation), Text(f"checkpoint {checkpoint}", overflow="ellipsis"))
    grid.add_row("restarts", Text(rows["restarts"](summary)), _age(view, now, "last line {} ago"))
    parts: list[RenderableType] = [grid]
    if summary.fault is not None:
        message = f"{rows['fault'](summary)}: {printable(summary.fault['message'])}"
        parts.append(Text(message, style="red", no_wrap=True, overflow="ellipsis"))
    style = "red" if summary.silent else "blue"
    return Panel(Group(*parts), title=Text(view.name, style="bold"), title_align="left", box=box.ROUNDED, border_style=style)


def _table(views: Sequence[View], now: float, width: int) -> "RenderableType":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    columns: dict[str, list[Text]] = {
        "step": [Text(f"{view.summary.step:,}") for view in views],
        "loss": [Text(_number(view.summary.loss_mean)) for view in views],
        "tokens/s": [Text(_rate(view.summary)) for view in views],
        "left": [Text(summary_table.ROWS["time left"](view.summary)) for view in views],
        "last line": [_age(view, now, "{}") for view in views],
        "restarts": [Text(str(view.summary.restarts)) for view in views],
        "fault": [Text(printable((view.summary.fault or {}).get("fault", "")), style="red") for view in views],
    }
    widths = {title: max(len(title), *(len(cell) for cell in cells)) for title, cells in columns.items()}
    spare = width - sum(widths.values()) - COLUMN_GAP * (len(widths) + 2)
    names = min(max(len(view.name) for view in views), max(10, spare - SPARK_WIDTH))
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("run", no_wrap=True, overflow="ellipsis", width=names, style="bold")
    for title, wide in widths.items():
        table.add_column(title, no_wrap=True, width=wide)
    has_room = spare - names >= SPARK_WIDTH
    if has_room:
        table.add_column("loss", no_wrap=True, width=min(spare - names, 4 * SPARK_WIDTH))
    for view, *cells in zip(views, *columns.values(), strict=True):
        table.add_row(Text(view.name), *cells, *([_Spark(view.loss, "cyan")] if has_room else []))
    return table


def _rate(summary: Summary) -> str:
    return "-" if summary.tokens_per_second is None else f"{summary.tokens_per_second:,.0f}"


class _Spark:
    """A sparkline as wide as its table cell."""

    def __init__(self, curve: Series, style: str):
        self.curve = curve
        self.style = style

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.text import Text

        steps = self.curve[0]
        if not len(steps):
            yield Text("-")
            return
        width = max(1, min(options.max_width, len(steps)))
        yield Text(sparkline(self.curve, int(steps[0]), int(steps[-1]), width), style=self.style, no_wrap=True)


def _age(view: View, now: float, form: str) -> "Text":
    from rich.text import Text

    if view.summary.ended is not None:
        return Text(f"ended: {printable(view.summary.ended)}", style="yellow")
    seconds = view.silence.seconds(now)
    if seconds is None:
        return Text("-")
    return Text(form.format(summary_table.duration(seconds)), style="bold red" if view.summary.silent else "green")


def _loss(summary: Summary) -> str:
    change = "" if summary.loss_change is None else f" ({summary.loss_change:+.4f})"
    return _number(summary.loss_mean) + change


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _percent(summary: Summary) -> str:
    return "" if summary.mfu is None else f"MFU {summary.mfu:.1%}"


def _join(*texts: str) -> str:
    return ", ".join(text for text in texts if text)
