"""Progress of long work. rich costs 60 ms to import, so it is loaded only when a bar is drawn on a terminal."""

import sys
import time
from types import TracebackType
from typing import Any, Self, TextIO

import click

from lt_shared.console.output import Verbosity, note, verbosity, visible


def is_terminal(stream: TextIO | None) -> bool:
    """Python sets a standard stream to None where the process was started with it closed."""
    return stream is not None and not stream.closed and stream.isatty()


class Stopwatch:
    """Show the elapsed seconds on a terminal, for work without a known total."""

    def __init__(self, title: str):
        self.title = title
        self._display: Any = None

    def __enter__(self) -> Self:
        if is_terminal(sys.stderr) and verbosity() != Verbosity.QUIET:
            from rich.console import Console
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            columns = [SpinnerColumn("line"), TextColumn("{task.description}:"), TimeElapsedColumn()]
            self._display = Progress(
                *columns, console=Console(stderr=True), transient=True, redirect_stdout=is_terminal(sys.stdout)
            )
            self._display.add_task(self.title, total=None)
            self._display.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._display is not None:
            self._display.stop()


class Progress:
    """Progress of long work: a bar when stderr is a terminal, otherwise one plain line every `interval_seconds`.

    `total` and `advance` count in `unit`; "B" is shown as megabytes. With `total` unknown (None), only the amount and
    the rate are shown. `done` is what an earlier attempt has finished: it counts as progress, not as speed.
    """

    def __init__(self, title: str, total: float | None, unit: str, interval_seconds: float = 10.0, done: float = 0.0):
        self.title = title
        self.total = total
        self.unit = unit
        self.interval_seconds = interval_seconds
        self.done = self._done_before = done
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        self._start = self._last_line = time.monotonic()
        if is_terminal(sys.stderr) and verbosity() != Verbosity.QUIET:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = [TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"), TimeRemainingColumn()]
            # Data on a stdout that is no terminal must not be drawn above the bar, where rich would put it.
            is_shared = is_terminal(sys.stdout)
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=is_shared)
            self._bar.start()
            self._task = self._bar.add_task(self.title, total=self.total, completed=self.done, state="")
        return self

    def advance(self, amount: float) -> None:
        self.done += amount
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, state=self._state(now))
        elif now - self._last_line >= self.interval_seconds:
            self._last_line = now
            note(f"{self.title}: {self._state(now)}")

    def print(self, text: str) -> None:
        """Write a line to stderr, above the bar where there is one."""
        text = visible(text)
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            click.echo(text, err=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
        if kind is None:
            now = time.monotonic()
            note(f"{self.title}: {self._state(now)} in {now - self._start:.1f} s")

    def _state(self, now: float) -> str:
        scale, unit = (1e6, "MB") if self.unit == "B" else (1.0, self.unit)
        digits = 1 if self.unit == "B" else 0
        rate = (self.done - self._done_before) / scale / max(now - self._start, 1e-9)
        amount = f"{self.done / scale:,.{digits}f}"
        if self.total:
            amount += f"/{self.total / scale:,.{digits}f} {unit} ({self.done / self.total:.0%})"
        else:
            amount += f" {unit}"
        return f"{amount}, {rate:,.1f} {unit}/s"
