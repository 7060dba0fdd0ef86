"""The state of a run in a few numbers: where it is, how fast, how well, and what happened to it."""

import dataclasses
import datetime
import os
import statistics
from typing import Any

from lt_monitor.events import Record
from lt_monitor.runs import Run

RECENT_STEPS = 50


@dataclasses.dataclass(frozen=True)
class Summary:
    """Fields are None where the log does not tell. Losses are nats per token.

    `loss` is the last logged one, `loss_mean` the mean over the last tenth of the logged steps, `loss_change` its difference to
    the mean over the tenth before. Speeds are medians over the last RECENT_STEPS logged steps, `memory_bytes` is the most of
    these. `skipped_steps` and `nan_steps` are sums over the run.
    """

    run: str
    step: int
    total_steps: int | None
    loss: float | None
    loss_mean: float | None
    loss_change: float | None
    validation_loss: float | None
    best_validation_loss: float | None
    best_validation_step: int | None
    consumed_tokens: int | None
    step_seconds: float | None
    tokens_per_second: float | None
    tflops_per_gpu: float | None
    mfu: float | None
    memory_bytes: float | None
    eta_seconds: float | None
    restarts: int
    lost_steps: int
    checkpoint_step: int | None
    checkpoint_path: str | None
    skipped_steps: int
    nan_steps: int
    updated: str | None

    def to_record(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def summarize(run: Run) -> Summary:
    """The summary of a run that has at least one step."""
    steps = list(run.steps.values())
    last = steps[-1]
    losses = values(steps, "loss")
    mean, change = _trend(losses)
    validations = [event for event in run.evaluations.values() if event["loss"] is not None]
    best = min(validations, key=lambda event: float(event["loss"]), default=None)
    recent = steps[-RECENT_STEPS:]
    step_seconds = _median(values(recent, "step_seconds"))
    total_steps = last.get("total_steps") or _whole(run.arguments.get("train_iters"))
    checkpoint = list(run.checkpoints.values())[-1] if run.checkpoints else None
    return Summary(
        run=run.name,
        step=last["step"],
        total_steps=total_steps,
        loss=losses[-1] if losses else None,
        loss_mean=mean,
        loss_change=change,
        validation_loss=validations[-1]["loss"] if validations else None,
        best_validation_loss=best["loss"] if best else None,
        best_validation_step=best["step"] if best else None,
        consumed_tokens=_consumed_tokens(last, run.arguments),
        step_seconds=step_seconds,
        tokens_per_second=_median([rate for step in recent if (rate := tokens_per_second(step, run.arguments)) is not None]),
        tflops_per_gpu=_median(values(recent, "tflops_per_gpu")),
        mfu=_median(values(recent, "mfu")),
        memory_bytes=max(values(recent, "memory_bytes"), default=None),
        eta_seconds=None if step_seconds is None or total_steps is None else max(0, total_steps - last["step"]) * step_seconds,
        restarts=len(run.resumed_at),
        lost_steps=run.lost_steps,
        checkpoint_step=checkpoint["step"] if checkpoint else None,
        checkpoint_path=checkpoint["path"] if checkpoint else None,
        skipped_steps=sum(step.get("skipped_steps") or 0 for step in steps),
        nan_steps=sum(step.get("nan_steps") or 0 for step in steps),
        updated=_updated(run),
    )


def values(steps: list[Record], field: str) -> list[float]:
    """The finite values of a field, in order."""
    return [value for step in steps if (value := step.get(field)) is not None]


def tokens_per_second(step: Record, arguments: Record) -> float | None:
    """The trainer's own figure, or batch size times sequence length over the step's time; the step's batch size comes first."""
    if step.get("tokens_per_second") is not None:
        return float(step["tokens_per_second"])
    batch_size = step.get("global_batch_size") or _whole(arguments.get("global_batch_size"))
    sequence_length = _whole(arguments.get("seq_length"))
    seconds = step.get("step_seconds")
    return batch_size * sequence_length / seconds if batch_size and sequence_length and seconds else None


def _consumed_tokens(step: Record, arguments: Record) -> int | None:
    sequence_length = _whole(arguments.get("seq_length"))
    samples = step.get("consumed_samples")
    return None if sequence_length is None or samples is None else samples * sequence_length


def _trend(losses: list[float]) -> tuple[float | None, float | None]:
    """Mean of the last tenth, and its difference to the tenth before."""
    if not losses:
        return None, None
    tenth = max(1, len(losses) // 10)
    mean = statistics.fmean(losses[-tenth:])
    before = losses[-2 * tenth : -tenth]
    return mean, mean - statistics.fmean(before) if before else None


def _median(numbers: list[float]) -> float | None:
    return statistics.median(numbers) if numbers else None


def _whole(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None


def _updated(run: Run) -> str | None:
    """When the run last logged: the newest time in its lines, else its newest log's modification. No zone means local time."""
    times = []
    for text in run.last_times:
        try:
            times.append(datetime.datetime.fromisoformat(text).astimezone())
        except (ValueError, OverflowError):
            continue
    if not times:
        existing = [file for file in run.files if os.path.isfile(file)]
        times = [datetime.datetime.fromtimestamp(os.path.getmtime(file)).astimezone() for file in existing]
    return max(times).isoformat(timespec="seconds") if times else None
