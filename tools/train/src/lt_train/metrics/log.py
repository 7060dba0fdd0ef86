"""Report a run: Megatron's lines on stderr and in SAVE/train.log, records in SAVE/metrics.jsonl, curves, and the manifest of its
checkpoints on stdout.

Only rank 0 reports. Every attempt of a run appends to both files. A step that was trained again after a resume appears twice, and
the later line counts. While the disk is full, lines are left out and training continues. On a terminal, stderr shows a table of
the steps above a progress bar; with -v it shows Megatron's lines instead, and with -q only warnings.
"""

import contextlib
import dataclasses
import datetime
import json
import math
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lt_shared.console import Progress, Verbosity, verbosity, visible, warn
from lt_shared.contracts import manifest, run_log
from lt_shared.contracts.recovery_notes import LocalCheckpoint, Nodes, Recovery, Started
from lt_shared.contracts.run_log import Evaluation, Step
from lt_shared.data.sample_order import sample_losses
from lt_shared.data.sample_order.log_notes import PhaseBegins, Skipped
from lt_train.config.settings.batches import Batches
from lt_train.config.settings.data_schedule import Schedule
from lt_train.config.settings.reporting import Reporting
from lt_train.metrics import recorded_steps, trackers
from lt_train.metrics.recorded_steps import METRICS, Attempt
from lt_train.metrics.step_timer import Lap
from lt_train.metrics.trackers import Tracker
from lt_train.process.run_files import AppendedLines

TRAIN_LOG = "train.log"
TABLE_HEADER = f"{'step':>17} {'loss':>10} {'tokens/s':>12} {'time left':>12}"
# Lines that other messages may take between two headers.
_SPARE_LINES = 6


class Log:
    """A context that reports on rank 0. On other ranks its methods do nothing. Without the directory `run` there are no files."""

    def __init__(self, reporting: Reporting, run: str | None, active: bool):
        self.active = active
        self._reporting = reporting
        self._run = run
        self._resources = contextlib.ExitStack()
        self._train_log: AppendedLines | None = None
        self._metrics: AppendedLines | None = None
        self._sample_losses: AppendedLines | None = None
        # The attempt's configuration, until it is written: in metrics.jsonl, it must come before the steps that it computed.
        self._unwritten_start = ""
        self._trackers: list[Tracker] = []
        self._progress: Progress | None = None
        self._is_loud = verbosity() != Verbosity.QUIET
        self._has_table = sys.stderr.isatty() and verbosity() == Verbosity.NORMAL
        self._table = StepTable()
        self._phase: str | None = None
        self._manifest = manifest.Writer(reporting.plain)
        if active and run and reporting.sample_losses:
            self._sample_losses = self._open(Path(run) / sample_losses.FILE)
        if active and run:
            self._train_log = self._open(Path(run) / TRAIN_LOG)
            self._metrics = self._open(Path(run) / METRICS)

    def _open(self, path: Path) -> AppendedLines:
        return self._resources.enter_context(AppendedLines(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._resources.__exit__(kind, error, trace)

    def begin(self, attempt: Attempt, batches: Batches, schedule: Schedule, arguments: dict[str, Any]) -> None:
        """Report that the steps of `attempt` begin. Open the trackers and the progress bar."""
        if not self.active:
            return
        iteration = attempt.start
        self._phase = schedule.phases[schedule.place(batches, iteration)].name if schedule else None
        self._unwritten_start = _json_line(recorded_steps.start_record(attempt, arguments))
        self._write_metrics("")
        self._trackers = trackers.open_trackers(self._reporting, self._run, iteration + 1, arguments)
        for tracker in self._trackers:
            self._resources.callback(tracker.close)
        if sys.stderr.isatty() and self._is_loud:
            bar = Progress("training", batches.train_iters, "steps", done=iteration)
            self._progress = self._resources.enter_context(bar)

    def line(self, text: str, brief: Sequence[str] | None = None) -> None:
        """Report a line. A terminal with a table shows the lines `brief` instead."""
        if not self.active:
            return
        self._write(self._train_log, text + "\n")
        for shown in (text,) if brief is None or not self._has_table else brief:
            self._show(shown)

    def _show(self, text: str) -> None:
        if not self._is_loud:
            return
        # A batch system may redirect stderr to a file on the same full disk.
        with contextlib.suppress(OSError, ValueError):
            if self._progress:
                self._progress.print(text)
            else:
                sys.stderr.write(visible(text) + "\n")
                sys.stderr.flush()

    def arguments(self, arguments: dict[str, Any]) -> None:
        for line in run_log.format_arguments(arguments):
            self.line(line, brief=())

    def advance(self) -> None:
        """Advance the progress bar after a step."""
        if self._progress:
            self._progress.advance(1)

    def step(self, step: Step, tokens_per_second: float, lap: Lap) -> None:
        self.line(step.format(), self._table.lines(step, tokens_per_second))
        numbers = {name: value for name, value in dataclasses.asdict(step).items() if name != "time" and value is not None}
        source_losses = {f"{run_log.SOURCE_LOSS}{name}": loss for name, loss in numbers.pop("source_losses", {}).items()}
        speed = {"tokens_per_second": tokens_per_second, "data_seconds": lap.data_seconds, "loop_seconds": lap.loop_seconds}
        phase = {"phase": self._phase} if self._phase else {}
        self._metric({"kind": "step", **numbers, **source_losses, **speed, **phase})
        self._track(step.step, trackers.step_values(step))

    def phase(self, begins: PhaseBegins) -> None:
        """Report that a phase begins. The step records after it have the phase's name."""
        self._phase = begins.name
        self._note(begins)

    def skipped(self, skipped: Skipped) -> None:
        self._note(skipped)

    def local_checkpoint(self, saved: LocalCheckpoint) -> None:
        self._note(saved, datetime.datetime.now(), [f"local checkpoint of step {saved.step}"])

    def recovery(self, recovery: Recovery) -> None:
        """Report the first step after a failure."""
        self._note(recovery, datetime.datetime.now())

    def started(self, started: Started) -> None:
        """Report the first step of this attempt."""
        self._note(started, datetime.datetime.now(), [f"first step after {started.seconds:.1f} s"])

    def nodes(self, nodes: Nodes) -> None:
        """Report that an attempt begins on some of the run's nodes, or on all again."""
        self._note(nodes, datetime.datetime.now())

    def _note(
        self,
        note: PhaseBegins | Skipped | LocalCheckpoint | Recovery | Started | Nodes,
        time: datetime.datetime | None = None,
        brief: Sequence[str] | None = None,
    ) -> None:
        self.line(note.format() if time is None else note.format(time), brief)  # type: ignore[call-arg]
        message, fields = note.format().strip(), dataclasses.asdict(note)
        self._metric({"kind": "note", "note": note.NOTE, "message": message, "fields": fields})

    def sample_losses(self, step: int, first_sample: int, losses: Sequence[float]) -> None:
        """Write the losses of a step's samples; the first sample has the number `first_sample` in the run."""
        if self._sample_losses:
            self._write(self._sample_losses, sample_losses.line(step, first_sample, losses))

    def evaluation(self, evaluation: Evaluation) -> None:
        named = f" {evaluation.name}" if evaluation.name else ""
        brief = f"{evaluation.split}{named} loss {evaluation.loss:.4f}, perplexity {evaluation.perplexity:.4g}"
        self.line(evaluation.format(), [f"{brief} after {evaluation.step:,} steps"])
        set_name = {"set": evaluation.name} if evaluation.name else {}
        numbers = {"step": evaluation.step, "loss": evaluation.loss, "split": evaluation.part, **set_name}
        self._metric({"kind": "eval", **numbers, "perplexity": evaluation.perplexity})
        self._track(evaluation.step, trackers.evaluation_values(evaluation))

    def checkpoint(self, entry: manifest.Checkpoint, waited_seconds: float, seconds: float) -> None:
        """Report a checkpoint that is complete `seconds` after its step; training waited for `waited_seconds`."""
        if self.active:
            brief = f"checkpoint of step {entry.iteration}: {entry.path}"
            self.line(run_log.format_checkpoint_waited(entry.iteration, waited_seconds, seconds), [brief])
            times = {"waited_seconds": waited_seconds, "seconds": seconds}
            self._metric({"kind": "checkpoint", "step": entry.iteration, "path": entry.path, **times})
            self._manifest.write(entry)

    def checkpoint_postponed(self, iteration: int, retry: int, reason: str) -> None:
        """Report that there was no room for the checkpoint of `iteration`, and that it is tried again after step `retry`."""
        text = run_log.format_checkpoint_postponed(iteration, retry, reason)
        self.warning(text)
        kind = {"kind": "fault", "fault": "disk-full", "cause": "unknown", "severity": "warning"}
        self._metric(kind | {"message": text, "step": iteration})

    def warning(self, text: str) -> None:
        if not self.active:
            return
        self._write(self._train_log, f"  warning: {text}\n")
        self._warn(text)

    def _warn(self, text: str) -> None:
        if self._progress:
            self._progress.print(f"lt-train: warning: {text}")
        else:
            warn(text)

    def failure(self, text: str) -> None:
        """Write the reason why a rank ends the run into the log. The rank prints it itself."""
        self._write(self._train_log, f"lt-train: error: {text}\n")

    def end(self) -> None:
        """End the manifest after the last step of the run."""
        if self.active:
            self._manifest.end()

    def _track(self, step: int, values: dict[str, float]) -> None:
        for tracker in self._trackers:
            tracker.write(step, values)

    def _metric(self, record: dict[str, Any]) -> None:
        if self._metrics:
            self._write_metrics(_json_line(record))

    def _write_metrics(self, text: str) -> None:
        if self._write(self._metrics, self._unwritten_start + text):
            self._unwritten_start = ""

    def _write(self, file: AppendedLines | None, text: str) -> bool:
        """Append `text` to `file`. Return False if there is no file or no room. Warn when the disk becomes full, and when it has
        room again."""
        if file is None:
            return False
        lost_lines = file.lost
        had_room = not any(log_file and log_file.lost for log_file in (self._train_log, self._metrics, self._sample_losses))
        is_written = file.write(text)
        if is_written and lost_lines:
            self.warning(f"{file.path}: {lost_lines} line(s) before this are missing: the disk was full")
        elif not is_written and had_room:
            self._warn(f"{file.path}: no space left on device; training continues, and lines are left out until there is room")
        return is_written


def _json_line(record: dict[str, Any]) -> str:
    stamp = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    finite = {key: value if _is_finite(value) else None for key, value in record.items()}
    return json.dumps({"v": 1, **finite, "time": stamp}, separators=(",", ":"), allow_nan=False) + "\n"


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


class StepTable:
    """Show training steps as rows of a table on a terminal. A row fits into 80 columns; Megatron's line takes four lines."""

    def __init__(self) -> None:
        self._rows_since_header: int | None = None

    def lines(self, step: Step, tokens_per_second: float) -> list[str]:
        """Return the row of a step, with a header above it if no header is in sight."""
        visible = max(1, shutil.get_terminal_size().lines - _SPARE_LINES)
        begins = self._rows_since_header is None or self._rows_since_header >= visible
        self._rows_since_header = 1 if begins else (self._rows_since_header or 0) + 1
        loss = "-" if step.loss is None else f"{step.loss:.4f}"
        time_left = _duration_text((step.total_steps - step.step) * step.step_seconds) if step.step_seconds is not None else "-"
        count = f"{step.step:,}/{step.total_steps:,}"
        row = f"{count:>17} {loss:>10} {tokens_per_second:>12,.0f} {time_left:>12}"
        return [TABLE_HEADER, row] if begins else [row]


def _duration_text(seconds: float) -> str:
    """Format a duration as `4:05`, `1:02:03` or `2 d 03:04`."""
    if not math.isfinite(seconds):
        return "-"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} d {hour:02}:{minute:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"
