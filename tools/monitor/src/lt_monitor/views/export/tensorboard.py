"""`lt-monitor export`: the curves of logs as TensorBoard event files, a directory for each run.

Tags are the same as in Megatron-LM's and lt-train's event files, so old logs appear beside new runs. If steps were repeated
after a restart, the later attempt counts, as in plots. A directory has one file with a fixed name, which every export replaces,
so no curve is doubled. The file is renamed from a name that TensorBoard does not read, so a killed export leaves no half curve.
"""

import itertools
import os
from collections.abc import Iterator, Sequence

import numpy as np

from lt_monitor.events.escaping import printable
from lt_monitor.events.records import Record
from lt_monitor.events.steps import epoch_seconds
from lt_monitor.logs.log_files import STANDARD_INPUT
from lt_monitor.runs import run_loader, speed
from lt_monitor.runs.attempts import Run
from lt_monitor.runs.metrics import METRICS
from lt_monitor.runs.silence import Silence
from lt_monitor.runs.speed import RunFacts, Sizes
from lt_monitor.views import plot
from lt_monitor.views.export import event_file
from lt_shared.console import CannotCreate
from lt_shared.contracts import run_log
from lt_shared.files import local_files, storage

# The name of a directory on the way is at most 255 bytes long.
NAME_BYTES = 200
TAG_CHARACTERS = 200
# TensorBoard reads every file with "tfevents" in its name.
EVENT_FILE = "events.out.tfevents.0.lt-monitor"
UNREAD_NAME = "lt-monitor.events"

TAGS = run_log.STEP_TAGS | {
    "tokens_per_second": "tokens-per-second",
    "samples_per_second": "samples-per-second",
    "skipped_samples": "skipped-train-samples",
    "params_norm": "params-norm",
    "zeros": "num-zeros",
    "energy_joules": "energy-joules",
    "power_watts": "power-watts",
}
NO_CURVES = ("total_steps",)
# Worked out where lines lack them, as in summaries.
COMPUTED = ("step_seconds", "tflops_per_gpu", "tokens_per_second", "tokens_per_second_per_gpu", "mfu")

# Steps, times and values, arrays of shape (points,).
Curve = tuple[np.ndarray, np.ndarray, np.ndarray]


def export(patterns: Sequence[str], directory: str, run_facts: RunFacts) -> list[tuple[str, str]]:
    """Write the runs in the logs below `directory`. Return the runs' names and the directories of their event files.

    Raises: NoInput and BadData as `run_loader.read`; CannotCreate if a directory cannot be written or has foreign event files,
    whose curves would be drawn into the same run; BadConfig for a remote directory.
    """
    storage.require_local(directory, "export")
    runs = run_loader.join_by_checkpoints(run_loader.read(patterns))
    exported = []
    for run, name in zip(runs, directory_names([run.name for run in runs]), strict=True):
        target = os.path.join(directory, name)
        _make_directories(directory, name)
        path = os.path.join(target, UNREAD_NAME)
        with storage.publish(path) as file:
            for block in _blocks(run, run_facts):
                file.write(block)
        with local_files.creating(target):
            os.replace(path, os.path.join(target, EVENT_FILE))
            storage.sync_directory(target)
        exported.append((run.name, target))
    return exported


def directory_names(names: Sequence[str]) -> list[str]:
    """A relative path for each run, without what all share, and with nothing that leads elsewhere or commands a terminal."""
    short = plot.short_names(list(names)) if len(names) > 1 else [os.path.basename(names[0].rstrip("/"))]
    paths: list[str] = []
    for name in short:
        parts = [_directory_name(part) for part in name.split("/") if part not in ("", ".")]
        path = os.path.join(*parts) if parts else "run"
        numbered = (path if number == 1 else f"{path}-{number}" for number in itertools.count(1))
        paths.append(next(candidate for candidate in numbered if candidate not in paths))
    return paths


def _directory_name(part: str) -> str:
    if part == STANDARD_INPUT:
        return "stdin"
    text = printable(part).encode()[:NAME_BYTES].decode(errors="ignore")
    return f"_{text}" if text.startswith(".") else text


def _make_directories(directory: str, name: str) -> None:
    """Raises CannotCreate for a link on the way, which may lead anywhere, and for event files that are not from here."""
    path = directory
    with local_files.creating(directory):
        os.makedirs(directory, exist_ok=True)
        for part in name.split("/"):
            path = os.path.join(path, part)
            if not os.path.isdir(path) or os.path.islink(path):
                os.mkdir(path)
        foreign_files = sorted(name for name in os.listdir(path) if "tfevents" in name and name != EVENT_FILE)
    if foreign_files:
        raise CannotCreate(
            f"{path}: has event files of another program: {printable(foreign_files[0])}", "choose another directory"
        )


def _blocks(run: Run, run_facts: RunFacts) -> Iterator[bytes]:
    times = wall_times(run)
    yield event_file.header(float(times[0]))
    for tag, (steps, seconds, values) in curves(run, run_facts, times).items():
        yield from event_file.scalars(tag, steps, seconds, values)


def curves(run: Run, run_facts: RunFacts, times: np.ndarray) -> dict[str, Curve]:
    """The curves of a run by tag.

    `times` are the wall times of the steps. A value is NaN if the log shows it but not as a number.
    """
    steps = run.steps
    sizes = Sizes.of(run.arguments, run_facts)
    columns = {name: column for name, column in steps.columns.items() if name not in NO_CURVES}
    columns |= {metric.key: metric.of(steps, sizes) for metric in METRICS if metric.key in COMPUTED}
    curve_by_tag: dict[str, Curve] = {}
    for name, column in columns.items():
        logged = ~np.isnan(column)
        if logged.any():
            values = np.where(np.isfinite(column[logged]), column[logged], np.nan)
            curve_by_tag[TAGS.get(name) or printable(name, TAG_CHARACTERS)] = steps.numbers[logged], times[logged], values
    for split in ("validation", "test"):
        evaluations = run.evaluations_on(split)
        if evaluations:
            numbers, seconds, losses = _evaluation_curve(evaluations, steps.numbers, times)
            perplexities = [run_log.Evaluation(0, loss, split).perplexity for loss in losses.tolist()]
            loss, perplexity = run_log.evaluation_tags(split)
            curve_by_tag[loss] = numbers, seconds, losses
            curve_by_tag[perplexity] = numbers, seconds, np.array(perplexities)
    return curve_by_tag


def _evaluation_curve(evaluations: Sequence[Record], numbers: np.ndarray, times: np.ndarray) -> Curve:
    steps = np.array([event["step"] for event in evaluations], np.int64)
    logged_times = np.array([epoch_seconds(event.get("time")) for event in evaluations])
    seconds = np.where(np.isfinite(logged_times), logged_times, np.interp(steps, numbers, times))
    return steps, seconds, np.array([np.nan if event["loss"] is None else event["loss"] for event in evaluations], np.float64)


def wall_times(run: Run) -> np.ndarray:
    """When each step was logged, seconds since 1970, shape (points,).

    A step without a time is interpolated between its neighbours. If the log has no times at all, the last step gets the time when
    the log last changed, and earlier steps are put before it by the durations of steps.
    """
    steps = run.steps
    has_time = np.isfinite(steps.times)
    if has_time.any():
        return np.asarray(np.interp(steps.numbers, steps.numbers[has_time], steps.times[has_time]))
    seconds = speed.step_seconds(steps)
    passed = np.cumsum(np.where(np.isfinite(seconds), seconds, 0.0) * np.diff(steps.numbers, prepend=steps.numbers[:1]))
    updated = Silence.of(run).updated
    return np.asarray(passed if updated is None else updated - passed[-1] + passed)
