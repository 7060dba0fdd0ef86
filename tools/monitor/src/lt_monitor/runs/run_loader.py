"""Read logs into runs: collect the attempts in each log (`log_attempts`), then merge the logs that belong to a run."""

import dataclasses
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

import numpy as np

from lt_monitor.events.records import Record
from lt_monitor.events.steps import Steps
from lt_monitor.logs import log_files, rank_series
from lt_monitor.logs.parsed_block import ParsedBlock, attributed
from lt_monitor.runs import starting
from lt_monitor.runs.attempt_boundary import guessed_resume, interval_begin, log_interval
from lt_monitor.runs.attempts import Attempt, Run
from lt_monitor.runs.log_attempts import LogAttempts
from lt_monitor.runs.run_state import positive
from lt_shared.console import BadData, warn

SAME_ATTEMPT_TOLERANCE = 1e-3


class RunLoader:
    """Collects runs while their logs are read: one `LogAttempts` for each run and log."""

    def __init__(self) -> None:
        self._attempts_by_source: dict[tuple[str, str], LogAttempts] = {}

    def add(self, event: Record) -> None:
        self._log_attempts(event["run"], event["src"]["file"]).take(event)

    def add_block(self, block: ParsedBlock, path: str, run: str) -> bool:
        """Add the records of a block from the log `path`, step lines as columns. Return whether the block has records."""
        steps = block.step_block()
        begin = 0
        for order, record in block.ordered_items():
            end = begin if steps is None else int(np.searchsorted(steps.offsets, order))
            if steps is not None and end > begin:
                self._log_attempts(run, path).take_steps(steps, begin, end)
            self.add(attributed(record, path, run))
            begin = end
        if steps is not None and len(steps.offsets) > begin:
            self._log_attempts(run, path).take_steps(steps, begin, len(steps.offsets))
        return bool(block.items or block.rows)

    def _log_attempts(self, run: str, file: str) -> LogAttempts:
        source = run, file
        if source not in self._attempts_by_source:
            self._attempts_by_source[source] = LogAttempts(file)
        return self._attempts_by_source[source]

    def runs(self) -> list[Run]:
        """All runs in order of appearance. The attempts of a run's logs are merged."""
        by_run: dict[str, list[list[Attempt]]] = {}
        for (name, _), history in self._attempts_by_source.items():
            by_run.setdefault(name, []).append(history.attempts())
        return [_run(name, attempts) for name, attempts in by_run.items()]


def assemble(events: Iterable[Record]) -> list[Run]:
    """The runs among records that are complete with run and source."""
    loader = RunLoader()
    for event in events:
        loader.add(event)
    return loader.runs()


def read(patterns: Sequence[str], need_steps: bool = True, or_starting: bool = False) -> list[Run]:
    """Read the runs in the logs that match `patterns`.

    With `need_steps`, only runs with steps; with `or_starting`, also runs that start, or died before their first step.

    Raises: NoInput if a log is missing, BadData if no log has such a run. Warns about a log without events.
    """
    paths = log_files.expand(patterns)
    if need_steps:
        log_files.require_text(paths)
    loader = RunLoader()
    for path, run in rank_series.run_names(paths).items():
        shown = log_files.printable(path)
        says_something = False
        for block in log_files.parsed_blocks(path):
            says_something |= loader.add_block(block, shown, run)
        if not says_something and len(paths) > 1:
            warn(f"{shown}: no training events")
    runs = loader.runs()
    if not need_steps:
        return runs
    return with_starting(runs, paths) if or_starting else _with_steps(runs, paths)


def _with_steps(runs: Sequence[Run], paths: Sequence[str]) -> list[Run]:
    require_steps(runs, paths)
    return [run for run in runs if len(run.steps)]


def with_starting(runs: Sequence[Run], paths: Sequence[str]) -> list[Run]:
    """Return the runs in the logs `paths` that have steps, start, or died before their first step.

    If no log has any event, a short log that has just changed is a start. Raises BadData if none of this is there.
    """
    usable_runs = [run for run in runs if len(run.steps) or starting.is_run(run)]
    if usable_runs:
        return usable_runs
    unread_runs = {run.name: run for path in paths if (run := starting.unread_run(path)) is not None}
    if not unread_runs:
        require_steps(runs, paths)
    return list(unread_runs.values())


def require_steps(runs: Sequence[Run], paths: Sequence[str]) -> None:
    """Raises BadData when none of the runs in the logs `paths` trained."""
    if not any(len(run.steps) for run in runs):
        raise BadData(
            f"{paths[0]}: no training steps" if len(paths) == 1 else f"no training steps in {len(paths)} logs",
            "expected logs of a trainer, with lines like ' iteration  100/ 1000 | ... | lm loss: 2.1E+00 |'",
        )


def join_by_checkpoints(runs: Sequence[Run]) -> list[Run]:
    """Make one run of jobs that were submitted again and log into a new file each (`jobs_of_one_run`), named after the first."""
    jobs = [Job(_checkpoint_directory(run), _resumed_at(run) == 0, _begin_time(run)) for run in runs]
    groups = [[runs[index] for index in indexes] for indexes in jobs_of_one_run(jobs)]
    return [group[0] if len(group) == 1 else _run(group[0].name, [run.attempts for run in group]) for group in groups]


@dataclasses.dataclass(frozen=True)
class Job:
    """One log's run: the `directory` it saves into, None where that is not known, and when it began, seconds since 1970."""

    directory: str | None
    is_from_scratch: bool
    begin_time: float | None


def jobs_of_one_run(jobs: Sequence[Job]) -> list[list[int]]:
    """Group jobs into runs and return their indices: a run's jobs save into one directory, and later jobs resumed from a step.

    Jobs are sorted by begin time, or keep their order if a log has no times. A job that began from scratch begins a new run,
    even if it saves into an earlier job's directory.
    """
    by_directory: dict[str | int, list[int]] = {}
    for index, job in enumerate(jobs):
        by_directory.setdefault(index if job.directory is None else job.directory, []).append(index)
    groups: list[list[int]] = []
    for indexes in by_directory.values():
        begins = {index: jobs[index].begin_time for index in indexes}
        if None not in begins.values():
            indexes = sorted(indexes, key=lambda index: begins[index] or 0.0)
        groups.append([])
        for index in indexes:
            if groups[-1] and jobs[index].is_from_scratch:
                groups.append([])
            groups[-1].append(index)
    return sorted(groups, key=min)


def checkpoint_directory(paths: Iterable[object]) -> str | None:
    """The first absolute path or URL. A log does not show what relative paths are relative to."""
    return next((path for path in paths if isinstance(path, str) and (path.startswith("/") or "://" in path)), None)


def _checkpoint_directory(run: Run) -> str | None:
    return checkpoint_directory([run.arguments.get("save"), *(event.get("path") for event in run.of_kind("checkpoint"))])


def _resumed_at(run: Run) -> int | None:
    return run.attempts[0].resumed_at if run.attempts else 0


def _begin_time(run: Run) -> float | None:
    return run.attempts[0].begin_time if run.attempts else None


def _run(name: str, logs: Sequence[list[Attempt]]) -> Run:
    attempts = list(logs[0])
    for other in logs[1:]:
        attempts = _merged(attempts, other)
    arguments: Record = {}
    interval_before: int | None = None
    begins: list[int | None] = []
    # Sorted, for bisection: a job that restarts a thousand times has saved in a thousand earlier attempts.
    saved_steps: list[int] = []
    is_first = True
    for index, attempt in enumerate(attempts):
        attempt.number = index + 1
        arguments |= attempt.arguments
        numbers = attempt.steps.numbers
        step_distance = int(numbers[1] - numbers[0]) if len(numbers) > 1 else None
        interval = log_interval(positive(arguments.get("log_interval")), step_distance, [interval_before])
        interval_before = step_distance if step_distance and step_distance > 0 else interval_before
        first = attempt.first_step
        if attempt.resumed_at is None and first is not None:
            before = bisect_left(saved_steps, first)
            attempt.resumed_at = guessed_resume(first, interval, saved_steps[before - 1 : before] if before else (), is_first)
        begins.append(None if first is None else interval_begin(first, interval, attempt.resumed_at))
        for event in attempt.of_kind("checkpoint"):
            if not event.get("begun") and event.get("step") is not None:
                insort(saved_steps, event["step"])
        is_first = is_first and first is None
    resumed_later: int | None = None
    for attempt, begin in zip(reversed(attempts), reversed(begins), strict=True):
        if attempt.last_step is not None and begin is not None and resumed_later is not None:
            attempt.lost_steps = max(0, attempt.last_step - max(resumed_later, begin))
        if attempt.resumed_at is not None:
            resumed_later = attempt.resumed_at if resumed_later is None else min(resumed_later, attempt.resumed_at)
    files = dict.fromkeys(file for attempt in attempts for file in attempt.files)
    return Run(name, attempts, list(files))


def _merged(attempts: list[Attempt], other_attempts: list[Attempt]) -> list[Attempt]:
    """Merge a run's attempts in two logs, in order. An attempt in both logs counts once."""
    merged = list(attempts)
    position = 0
    for other in other_attempts:
        same = next((index for index in range(position, len(merged)) if _is_same(merged[index], other)), None)
        if same is not None:
            merged[same] = _union(merged[same], other)
            position = same + 1
            continue
        if other.begin_time is not None:
            position = sum(one.begin_time is None or one.begin_time <= other.begin_time for one in merged)
        else:
            position = len(merged)
        merged.insert(position, other)
        position += 1
    return merged


def _is_same(one: Attempt, other: Attempt) -> bool:
    """Whether two logs have the same attempt: their times overlap, or without times their steps do and the losses agree."""
    if one.resumed_at is not None and other.resumed_at is not None and one.resumed_at != other.resumed_at:
        return False
    if one.begin_time is not None and other.begin_time is not None:
        assert one.end_time is not None and other.end_time is not None
        return max(one.begin_time, other.begin_time) <= min(one.end_time, other.end_time)
    if not len(one.steps) or not len(other.steps):
        return one.resumed_at is not None and one.resumed_at == other.resumed_at
    common, of_one, of_other = np.intersect1d(one.steps.numbers, other.steps.numbers, return_indices=True)
    losses = one.steps.column("loss")[of_one], other.steps.column("loss")[of_other]
    finite = np.isfinite(losses[0]) & np.isfinite(losses[1])
    agree = np.isclose(losses[0][finite], losses[1][finite], rtol=SAME_ATTEMPT_TOLERANCE)
    return len(common) > 0 and bool(agree.all())


def _union(one: Attempt, other: Attempt) -> Attempt:
    begins = [time for time in (one.begin_time, other.begin_time) if time is not None]
    ends = [time for time in (one.end_time, other.end_time) if time is not None]
    resumes = [step for step in (one.resumed_at, other.resumed_at) if step is not None]
    return Attempt(
        number=one.number,
        resumed_at=resumes[0] if resumes else None,
        steps=Steps.join([one.steps, other.steps]),
        events=one.events + other.events,
        closing=one.closing + other.closing,
        begin_time=min(begins, default=None),
        end_time=max(ends, default=None),
        files=list(dict.fromkeys(one.files + other.files)),
    )
