"""Where an attempt begins and from which step it went on: decided here alone, for whole logs and for records one at a time.

An attempt begins where the trainer starts, where a checkpoint is loaded after steps, or where the steps of one process go back.
Most logs say which step the trainer went on from. Where one does not, it is the last checkpoint within a log interval before the
first step line, or else that line's interval is taken to begin where it went on.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import TypeVar

from lt_monitor.events.records import Record

Stream = TypeVar("Stream", bound=Hashable)


def begins_attempt(record: Record, stream: Stream, last_steps: Mapping[Stream, int], started: Collection[str]) -> bool:
    """Whether `record`, told by the process `stream`, belongs to another attempt than what its log said before.

    `last_steps` is the last step of each process in the present attempt, `started` what `start_key` gave for its starts.
    """
    if record["kind"] == "step":
        return bool(record["step"] < last_steps.get(stream, 0))
    if record["kind"] == "start":
        return bool(last_steps) or start_key(record, stream) in started
    return bool(last_steps) and (record["kind"] == "load" or record.get("note") == "initialized")


def start_key(record: Record, stream: Hashable) -> str:
    """What a start tells: a trainer may tell of it in several lines, each with other things in it, and each once."""
    return f"{stream} {' '.join(sorted(record['arguments']))} {bool(record.get('first_step'))}"


def log_interval(argument: int | None, own: int | None, earlier: Iterable[int | None]) -> int:
    """Steps that a line stands for: as the arguments say, as between the attempt's first two lines, or as in earlier attempts."""
    known = [interval for interval in (*earlier, own, argument) if interval and interval > 0]
    return known[-1] if known else 1


def interval_begin(first_step: int, interval: int, resumed_at: int | None = None) -> int:
    """The step after which the interval of an attempt's first step line began: `resumed_at`, where that is known."""
    if resumed_at is not None and resumed_at < first_step:
        return resumed_at
    return first_step - interval if first_step >= interval and first_step % interval == 0 else first_step - 1


def guessed_resume(first_step: int, interval: int, saved: Iterable[int], is_first: bool) -> int | None:
    """The step that an attempt went on from which does not say so; None where the first attempt of a log may be a later one.

    `saved` are the steps of the checkpoints of earlier attempts.
    """
    if is_first:
        return 0 if first_step <= interval else None
    within = [step for step in saved if first_step - interval <= step < first_step]
    return max(within, default=interval_begin(first_step, interval))
