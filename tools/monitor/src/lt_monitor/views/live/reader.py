"""Read the logs in a thread, so keys are answered while a long log is read.

When a log changes, all logs are read again, so truncated, rotated and replaced logs need no special care. Reading takes at most a
tenth of the time, however large the logs are: after a look that took N seconds, the next look waits 10 N seconds.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence

from lt_monitor.events.escaping import printable
from lt_monitor.events.records import Record
from lt_monitor.logs.log_files import expand
from lt_monitor.runs import run_loader, starting
from lt_monitor.runs.speed import RunFacts
from lt_monitor.views import plot
from lt_monitor.views.live.view import Node, View, nodes_of
from lt_shared.console import NoInput, ToolError
from lt_shared.files import storage

LOOK_SHARE = 10
# How often a log is looked for that is not there yet.
WAIT_SECONDS = 1.0


class Logs:
    """The present state of the logs. `sample_gpus` samples the GPUs of this machine."""

    def __init__(self, patterns: Sequence[str], run_facts: RunFacts, sample_gpus: Callable[[], list[Record]] = list):
        self.patterns = patterns
        self.run_facts = run_facts
        self.views: list[View] = []
        self.nodes: list[Node] = []
        self.trouble: str | None = None
        self.look_seconds = 0.0
        self._sample_gpus = sample_gpus
        self._samples: list[Record] = []
        self._seen: list[tuple[object, ...]] = []

    def look(self) -> None:
        """Raises: NoInput and BadData when there is nothing to show."""
        begin = time.monotonic()
        paths = expand(self.patterns, quiet=bool(self._seen))
        file_state = _state(paths)
        runs_in_logs = run_loader.read(paths, need_steps=False)
        self._samples = [event for run in runs_in_logs for event in run.of_kind("gpu")]
        shown_runs = [run for run in runs_in_logs if len(run.steps) or starting.is_run(run)]
        runs = run_loader.join_by_checkpoints(shown_runs if self._samples else run_loader.with_starting(runs_in_logs, paths))
        names = plot.short_names([run.name for run in runs])
        self.views = [View.of(run, name, self.run_facts) for run, name in zip(runs, names, strict=True)]
        self._seen = file_state
        self._look_at_gpus()
        self.look_seconds = time.monotonic() - begin

    @property
    def is_waiting(self) -> bool:
        """Whether no log has been there so far."""
        return not self._seen

    def look_or_wait(self) -> None:
        """Look. If there is no log yet, for example because its job is queued, `trouble` says what is waited for.

        Raises: BadData when there is nothing to show in the logs.
        """
        try:
            self.look()
            self.trouble = None
        except NoInput as error:
            hint = f" ({printable(error.hint)})" if error.hint else ""
            self.trouble = f"waiting for a log: {printable(error)}{hint}"

    def look_again(self) -> None:
        """Look again. If the logs cannot be read for a while, for example while a job is requeued, keep the last views."""
        try:
            if self.is_waiting:
                return self.look_or_wait()
            if _state(expand(self.patterns, quiet=True)) != self._seen:
                self.look()
            else:
                self._look_at_gpus()
            self.trouble = None
        except (ToolError, OSError) as error:
            self.trouble = printable(error)

    def _look_at_gpus(self) -> None:
        self.nodes = nodes_of([*self._samples, *(sample for sample in self._sample_gpus() if sample["kind"] == "gpu")])


class Reader(threading.Thread):
    """Looks at the logs repeatedly and calls `notify` after each look.

    `failure` is the exception that ended the thread, if any.
    """

    def __init__(self, logs: Logs, interval_seconds: float, notify: Callable[[], None]):
        super().__init__(name="reader", daemon=True)
        self.failure: Exception | None = None
        self._logs = logs
        self._interval_seconds = interval_seconds
        self._notify = notify
        self._stopped = threading.Event()

    def run(self) -> None:
        try:
            while not self._stopped.wait(self._pause_seconds()):
                self._logs.look_again()
                self._notify()
        except Exception as error:
            # Whatever it is: the main thread raises it when the terminal is as it was. Here it would be printed into the screen.
            self.failure = error
            self._notify()

    def _pause_seconds(self) -> float:
        if self._logs.is_waiting:
            return min(self._interval_seconds, WAIT_SECONDS)
        return max(self._interval_seconds, LOOK_SHARE * self._logs.look_seconds)

    def stop(self) -> None:
        """A look that has begun goes on; nobody waits for it."""
        self._stopped.set()


def _state(paths: Sequence[str]) -> list[tuple[object, ...]]:
    file_state: list[tuple[object, ...]] = []
    for path in paths:
        if storage.is_remote(path):
            file_state.append((path, time.monotonic()))
        else:
            status = os.stat(path)
            file_state.append((path, status.st_ino, status.st_size, status.st_mtime_ns))
    return file_state
