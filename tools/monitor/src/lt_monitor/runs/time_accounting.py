"""Time accounting: totals of an attempt's seconds by cause. Each event updates them, and they fit into a state file.

An attempt of a million steps is a few hundred numbers here: durations of steps are counted in bins 2% wide, so the median and
the time above it are accurate to 1%, whatever the number of steps. For work that a later attempt repeats, `marks` keep the
seconds of training up to each checkpoint, and how many of them were slow by the median at that moment. Whole histograms would
be exact even if the median drifts, but take 10 kB per attempt. Step lines are enough; if they have times, the seconds between
steps count, too.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence

from lt_monitor.runs.attempt_boundary import interval_begin

CAUSES = ("queue", "start", "compile", "data", "checkpoint", "evaluation", "lost-work", "hang", "slow-steps", "stop")
BIN_WIDTH = math.log(1.02)
MARKS = 32
SLOW_FACTOR = 1.5
HANG_MINIMUM_SECONDS = 300.0
HANG_STEP_FACTOR = 10.0


@dataclasses.dataclass
class AttemptTotals:
    """An attempt's totals. Times are seconds since 1970, None if the log has no times.

    `histogram` maps a bin of step durations to [steps, seconds]. `marks` are [step, seconds of training so far, seconds in slow
    steps so far]. `gaps` has the seconds between step lines by cause. `waiting` has the events since the last step line; the
    last one was complete at `waited_until`. `first_seconds` and `first_steps` describe the first step line, which includes the
    compilation. `interval` is the number of steps between the first two step lines, None before the second. `is_guessed`: no
    line shows `resumed_at`. `failed`: a critical fault followed the last step. `launched`: lt-train logged that it was started
    for this attempt (True) or that it replaced ranks within a running job (False); None without such a line.
    """

    begin: float | None = None
    end: float | None = None
    resumed_at: int | None = None
    is_guessed: bool = False
    interval: int | None = None
    first_step: int | None = None
    last_step: int | None = None
    first_step_begin: float | None = None
    last_step_time: float | None = None
    first_seconds: float = 0.0
    first_steps: int = 0
    step_seconds: float = 0.0
    histogram: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    marks: list[list[float]] = dataclasses.field(default_factory=list)
    gaps: dict[str, float] = dataclasses.field(default_factory=dict)
    waiting: dict[str, float] = dataclasses.field(default_factory=dict)
    waited_until: float | None = None
    failed: bool = False
    launched: bool | None = None

    def note_time(self, time: float | None) -> None:
        if time is not None:
            self.begin = time if self.begin is None else min(self.begin, time)
            self.end = time if self.end is None else max(self.end, time)

    def take_step(self, step: int, seconds: float | None, time: float | None, log_interval: int) -> None:
        """A step line: `seconds` a step since the line before, None where the line does not say."""
        first = self.first_step is None
        before = self.last_step if self.last_step is not None else interval_begin(step, log_interval, self.resumed_at)
        steps = max(1, step - before)
        since = time - self.last_step_time if time is not None and self.last_step_time is not None else None
        if seconds is None:
            seconds = self._from_times(since, steps)
        spent = (seconds or 0.0) * steps
        if first:
            self.first_step, self.first_seconds, self.first_steps = step, seconds or 0.0, steps
            self.first_step_begin = time - spent if time is not None else None
            self.marks = [[step - steps, 0.0, 0.0], [step, spent, 0.0]]
        elif seconds:
            entry = self.histogram.setdefault(str(round(math.log(max(seconds, 1e-6)) / BIN_WIDTH)), [0, 0.0])
            entry[0] += steps
            entry[1] += spent
        if not first and self.interval is None and self.first_step is not None:
            self.interval = step - self.first_step
        self.step_seconds += spent
        if since is not None:
            self._assign_gap(since - spent)
        self.waiting, self.waited_until, self.failed = {}, None, False
        self.last_step, self.last_step_time = step, time

    def correct_first_line(self, log_interval: int) -> None:
        """Count the first step line for the steps that it stands for, once a later line or `resumed_at` has told how many."""
        if self.first_step is None:
            return
        steps = max(1, self.first_step - interval_begin(self.first_step, log_interval, self.resumed_at))
        more = (steps - self.first_steps) * self.first_seconds
        self.first_steps = steps
        self.marks = [[self.first_step - steps, 0.0, 0.0], *([step, spent + more, slow] for step, spent, slow in self.marks[1:])]
        self.step_seconds += more
        if self.first_step_begin is not None:
            self.first_step_begin -= more

    def take_pause(self, cause: str, seconds: float | None, until: float | None = None) -> None:
        """Take a checkpoint or an evaluation that took `seconds` by its line and was complete at the time `until`."""
        self.waiting[cause] = self.waiting.get(cause, 0.0) + (seconds or 0.0)
        self.waited_until = until if until is not None else self.waited_until

    def mark(self, step: int) -> None:
        """Remember how much training a checkpoint of `step` holds."""
        if self.last_step is not None and step <= self.last_step and self.marks[-1][0] < step:
            self.marks = [*self.marks[:2], *self.marks[2:][1 - MARKS :], [step, *self._training_at(step)]]

    def median_seconds(self) -> float | None:
        """The median duration of a step, None before the second step line."""
        total = sum(steps for steps, _ in self.histogram.values())
        counted = 0.0
        for _, (steps, seconds) in sorted(self.histogram.items(), key=lambda item: int(item[0])):
            counted += steps
            if counted * 2 >= total:
                return seconds / steps
        return None

    def slow_seconds(self) -> float:
        """What steps that took over SLOW_FACTOR times the median took above the median."""
        median = self.median_seconds()
        if median is None:
            return 0.0
        entries = self.histogram.values()
        return sum(seconds - steps * median for steps, seconds in entries if seconds > SLOW_FACTOR * median * steps)

    def compile_seconds(self) -> float:
        """The seconds of the first step line above the median."""
        median = self.median_seconds()
        return 0.0 if median is None else max(0.0, self.first_seconds - median) * self.first_steps

    def lost_steps(self, resumed_at: int) -> int:
        """Steps that an attempt that resumed from `resumed_at` repeated."""
        return max(0, self.last_step - max(resumed_at, int(self.marks[0][0]))) if self.last_step is not None else 0

    def lost_seconds(self, resumed_at: int) -> float:
        """What these steps took, without what slow steps and the compilation took among them."""
        if not self.lost_steps(resumed_at):
            return 0.0
        seconds, slow = self._training_at(resumed_at)
        lost = self.step_seconds - seconds - max(0.0, self.slow_seconds() - slow)
        first, compilation = int(self.marks[1][0]), self.compile_seconds()
        if resumed_at < first:
            # The compilation is in the part of the first line's interval that is lost, as far as that goes.
            lost -= compilation * min(1.0, (first - resumed_at) / self.first_steps)
        return max(0.0, lost)

    def _from_times(self, since: float | None, steps: int) -> float | None:
        """The duration of a step from the times of its lines, unless something else happened between them."""
        if since is None or since < 0:
            return None
        median = self.median_seconds()
        if median is not None and (self.waiting or since > 3 * median * steps):
            return min(median, since / steps)
        return since / steps

    def _assign_gap(self, gap: float) -> None:
        """Assign the seconds between two step lines that no step took to what happened there."""
        if gap <= 0:
            return
        if not self.waiting and gap <= HANG_MINIMUM_SECONDS:
            self.gaps["data"] = self.gaps.get("data", 0.0) + gap
            return
        limit = max(HANG_MINIMUM_SECONDS, HANG_STEP_FACTOR * (self.median_seconds() or 0.0))
        seconds_by_cause = {cause: seconds for cause, seconds in self.waiting.items() if seconds > 0}
        if self.waiting and sum(seconds_by_cause.values()) < gap:
            # Those whose lines say how long they took get that, the others share the rest.
            unmeasured = [cause for cause in self.waiting if cause not in seconds_by_cause] or list(self.waiting)
            remainder = gap - sum(seconds_by_cause.values())
            for cause in unmeasured:
                seconds_by_cause[cause] = seconds_by_cause.get(cause, 0.0) + remainder / len(unmeasured)
        elif self.waiting:
            total = sum(seconds_by_cause.values())
            seconds_by_cause = {cause: gap * seconds / total for cause, seconds in seconds_by_cause.items()}
        else:
            seconds_by_cause = {"hang" if gap > limit else "data": gap}
        for cause, seconds in seconds_by_cause.items():
            self.gaps[cause] = self.gaps.get(cause, 0.0) + seconds

    def _training_at(self, step: float) -> tuple[float, float]:
        """Seconds of training up to `step`, and those that slow steps took; between marks in proportion to the steps."""
        assert self.last_step is not None
        end = (self.step_seconds, self.slow_seconds())
        points = [*self.marks, [self.last_step, *end]]
        for (begin_step, before, slow_before), (end_step, after, slow_after) in itertools.pairwise(points):
            if step < end_step:
                share = max(0.0, step - begin_step) / (end_step - begin_step)
                return before + (after - before) * share, slow_before + max(0.0, slow_after - slow_before) * share
        return end


@dataclasses.dataclass(frozen=True)
class Account:
    """Seconds of a run: `productive` and by cause. `queue` is among the lost ones, but nothing was allocated then."""

    productive_seconds: float
    lost_seconds: dict[str, float]
    lost_steps: int
    restarts: int
    has_times: bool

    @property
    def allocated_seconds(self) -> float:
        return self.productive_seconds + sum(seconds for cause, seconds in self.lost_seconds.items() if cause != "queue")

    @property
    def goodput(self) -> float | None:
        """The productive share of the allocated seconds, None when there are none."""
        return self.productive_seconds / self.allocated_seconds if self.allocated_seconds > 0 else None


def account(attempts: Sequence[AttemptTotals]) -> Account:
    """Add up a run's attempts, in their order."""
    lost = dict.fromkeys(CAUSES, 0.0)
    productive = 0.0
    lost_steps = 0
    for index, attempt in enumerate(attempts):
        later = [other.resumed_at for other in attempts[index + 1 :] if other.resumed_at is not None]
        slow, compilation = attempt.slow_seconds(), attempt.compile_seconds()
        again = attempt.lost_seconds(min(later)) if later else 0.0
        lost_steps += attempt.lost_steps(min(later)) if later else 0
        for cause, seconds in [*attempt.gaps.items(), ("slow-steps", slow), ("compile", compilation), ("lost-work", again)]:
            lost[cause] += seconds
        productive += max(0.0, attempt.step_seconds - slow - compilation - again)
        for cause, seconds in _edges(attempt):
            lost[cause] += seconds
        if index and (began := _begin(attempt)) is not None and (ended := _latest_end(attempts[:index])) is not None:
            lost["hang" if attempt.launched is False else "queue"] += max(0.0, began - ended)
    restarts = max(0, len(attempts) - 1) + bool(attempts and attempts[0].resumed_at)
    has_times = any(attempt.begin != attempt.end for attempt in attempts)
    return Account(productive, lost, lost_steps, restarts, has_times)


def _edges(attempt: AttemptTotals) -> Iterable[tuple[str, float]]:
    """The seconds before the first and after the last step."""
    if attempt.begin is None:
        return
    assert attempt.end is not None
    if attempt.first_step_begin is None:
        if attempt.first_step is None:
            yield ("start", attempt.end - attempt.begin)
        return
    yield ("start", max(0.0, attempt.first_step_begin - attempt.begin))
    if attempt.last_step_time is not None:
        yield from _tail(attempt, attempt.last_step_time, attempt.end)


def _tail(attempt: AttemptTotals, last_step_time: float, end: float) -> Iterable[tuple[str, float]]:
    """The seconds after the last step by cause: checkpoints, evaluations, then the remaining time."""
    tail = max(0.0, end - last_step_time)
    remainder = "hang" if attempt.failed else "stop"
    if not attempt.waiting:
        yield (remainder, tail)
        return
    waited = sum(attempt.waiting.values())
    if attempt.waited_until is not None:
        paused = min(tail, max(0.0, attempt.waited_until - last_step_time))
    elif waited or attempt.failed:
        paused = min(tail, waited)
    else:
        paused = tail if "checkpoint" in attempt.waiting else 0.0
    for cause, seconds in attempt.waiting.items():
        yield (cause, paused * (seconds / waited if waited else 1 / len(attempt.waiting)))
    yield (remainder, tail - paused)


def _begin(attempt: AttemptTotals) -> float | None:
    """The first time of an attempt. Where nothing before its first step line has a time, that step was earlier than any."""
    if attempt.begin is None or attempt.first_step_begin is None:
        return attempt.begin
    return min(attempt.begin, attempt.first_step_begin)


def _latest_end(attempts: Iterable[AttemptTotals]) -> float | None:
    return max((attempt.end for attempt in attempts if attempt.end is not None), default=None)
