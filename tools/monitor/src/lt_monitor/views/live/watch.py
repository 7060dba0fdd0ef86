"""`lt-monitor watch`: a live view of runs and GPUs in a terminal, for people.

All runs are on one screen; arrows choose one and Enter opens its page. Without a terminal to read keys from, Ctrl-C ends it.
"""

import contextlib
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from lt_monitor.events.records import Record
from lt_monitor.logs.log_files import STANDARD_INPUT
from lt_monitor.runs.speed import RunFacts
from lt_monitor.views.live.reader import Logs, Reader
from lt_monitor.views.live.screen import ONE_SCREEN, Choice, Extent, render, screen_of
from lt_monitor.views.live.terminal import Keyboard, Wakeup, undisturbed
from lt_shared.console import UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

# Ages are shown in seconds.
REDRAW_SECONDS = 1.0


def watch(
    patterns: Sequence[str], run_facts: RunFacts, interval_seconds: float, sample_gpus: Callable[[], list[Record]] = list
) -> None:
    """Show the runs until q or Ctrl-C, looking at the logs and at `sample_gpus` every `interval_seconds` at most.

    Waits for a log that is not there yet. Raises: UsageError without a terminal or for standard input; BadData when the first
    look finds nothing to show in the logs.
    """
    if STANDARD_INPUT in patterns:
        raise UsageError("watch reads logs repeatedly, and standard input can be read only once", "write it to a file first")
    if not sys.stdout.isatty():
        raise UsageError("watch needs a terminal", "use lt-monitor summarize for a file or a pipe")
    from rich.console import Console

    if Console().is_dumb_terminal:
        raise UsageError(f"watch cannot draw on this terminal (TERM={os.environ['TERM']})", "use lt-monitor summarize")
    logs = Logs(patterns, run_facts, sample_gpus)
    logs.look_or_wait()
    wakeup = Wakeup()
    keyboard = Keyboard(wakeup)
    reader = Reader(logs, interval_seconds, wakeup.notify)
    reader.start()
    choice = Choice(has_keys=keyboard.exists)
    try:
        with wakeup.on_signals():
            while not wakeup.is_ended:
                with _screen(Console(), keyboard) as live:
                    choice = _interact(live, logs, reader, keyboard, wakeup, choice)
                if wakeup.is_suspended:
                    wakeup.is_suspended = False
                    os.kill(os.getpid(), signal.SIGSTOP)
    except KeyboardInterrupt:
        return
    finally:
        reader.stop()


def _interact(live: "Live", logs: Logs, reader: Reader, keyboard: Keyboard, wakeup: Wakeup, choice: Choice) -> Choice:
    """Draw and answer keys until the user quits (`wakeup.is_ended`) or suspends the program."""
    while not wakeup.is_suspended:
        if reader.failure is not None:
            raise reader.failure
        drawing = render(logs.views, time.time(), *live.console.size, logs.trouble, logs.nodes, choice)
        live.update(drawing, refresh=True)
        for key in keyboard.wait(REDRAW_SECONDS):
            if key == "q":
                wakeup.is_ended = True
                return choice
            choice = after_key(choice, key, [view.name for view in logs.views], screen_of(logs.views, choice, *live.console.size))
        choice = dataclasses.replace(choice, has_keys=keyboard.exists)
    return choice


def after_key(choice: Choice, key: str, names: Sequence[str], extent: Extent = ONE_SCREEN) -> Choice:
    """Apply a key to the choice.

    Among all runs, every arrow moves the choice. On the page of a run, left and right move it, the other keys scroll the page.
    """
    if not names:
        return choice
    index = names.index(choice.name) if choice.name in names else None
    size = max(1, extent.visible_lines - 1)
    scrolls = {"up": -1, "down": 1, "page up": -size, "page down": size, "home": -extent.lines, "end": extent.lines}
    moves = {"left": -1, "right": 1}
    if choice.is_open and index is not None and key in scrolls:
        highest = max(0, extent.lines - extent.visible_lines)
        return dataclasses.replace(choice, first_line=max(0, min(highest, choice.first_line + scrolls[key])))
    moves |= scrolls | {"home": -len(names), "end": len(names)}
    if key in moves:
        chosen = max(0, min(len(names) - 1, index + moves[key])) if index is not None else 0 if moves[key] > 0 else len(names) - 1
        return dataclasses.replace(choice, name=names[chosen], first_line=0)
    if key == "enter":
        return dataclasses.replace(choice, name=names[index or 0], is_open=True, first_line=0)
    if key in ("escape", "backspace"):
        return dataclasses.replace(choice, is_open=False, first_line=0)
    return choice


@contextlib.contextmanager
def _screen(console: "Console", keyboard: Keyboard) -> Iterator["Live"]:
    """The alternate screen with single keys. However it is left, by a signal or an exception too, both are as before."""
    from rich.live import Live

    live = Live(console=console, screen=True, auto_refresh=False)
    try:
        with keyboard.single_keys():
            try:
                live.start()
                yield live
            finally:
                with undisturbed():
                    live.stop()
    finally:
        if console.is_alt_screen:
            console.set_alt_screen(False)
            console.show_cursor(True)
