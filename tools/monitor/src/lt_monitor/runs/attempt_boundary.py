"""Decide where an attempt begins and its first step after a checkpoint, for whole logs and for single records.

An attempt begins when the trainer starts, when a checkpoint is loaded after steps, or when the steps of a process go back.
Most logs show the step from which the trainer resumed. If a log does not, the attempt is assumed to have resumed from the last
checkpoint within one log interval before the first step line. If there is no such checkpoint, it is assumed to have resumed at
the beginning of the first line's interval.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import TypeVar

from lt_monitor.events.records import Record

# Notes of Megatron before its first step.
STARTS = ("initialized", "training-start")

Stream = TypeVar("Stream", bound=Hashable)


def begins_attempt(record: Record, stream: Stream, last_steps: Mapping[Stream, int], started: Collection[str]) -> bool:
    """Return whether `record`, printed by the process `stream`, begins a new attempt in its log.

    `last_steps` has the processes' last steps in the present attempt, `started` the `start_key`s of its start lines.
    """
    if record["kind"] == "step":
        return bool(record["step"] < last_steps.get(stream, 0))
    if record["kind"] == "start":
        return bool(last_steps) or start_key(record, stream) in started
    return bool(last_steps) and (record["kind"] == "load" or record.get("note") in STARTS)


def start_key(record: Record, stream: Hashable) -> str:
    """What identifies a start line: a trainer may print several for one start, each with other arguments and each once."""
    return f"{stream} {' '.join(sorted(record['arguments']))} {bool(record.get('first_step'))}"


def log_interval(argument: int | None, measured: int | None, earlier: Iterable[int | None]) -> int:
    """Steps per step line: of the arguments, else between the attempt's first two lines, else of earlier attempts."""
    intervals = [interval for interval in (*earlier, measured, argument) if interval and interval > 0]
    return intervals[-1] if intervals else 1


def interval_begin(first_step: int, interval: int, resumed_at: int | None = None) -> int:
    """The step before the interval of an attempt's first step line: `resumed_at`, if the log shows it."""
    if resumed_at is not None and resumed_at < first_step:
        return resumed_at
    return first_step - interval if first_step >= interval and first_step % interval == 0 else first_step - 1


def guessed_resume(first_step: int, interval: int, saved: Iterable[int], is_first: bool) -> int | None:
    """Return the probable step of the checkpoint that an attempt resumed from, for a log that does not show it.

    None if the log's first attempt may have predecessors.

    `saved` has the checkpoint steps of earlier attempts.
    """
    if is_first:
        return 0 if first_step <= interval else None
    within = [step for step in saved if first_step - interval <= step < first_step]
    return max(within, default=interval_begin(first_step, interval))
