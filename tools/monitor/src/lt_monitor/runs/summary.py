"""The state of a run in a few numbers: where it is, how fast, how well, and what happened to it."""

import dataclasses
import datetime
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from lt_monitor.events.records import Record
from lt_monitor.events.steps import Steps
from lt_monitor.runs import scores, speed
from lt_monitor.runs.attempts import Attempt, Run
from lt_monitor.runs.fault_costs import FaultCosts
from lt_monitor.runs.faults.advice import advice
from lt_monitor.runs.faults.endings import ending_faults, ending_of
from lt_monitor.runs.faults.failure_causes import NAN_STEPS, root_cause, suspect_ranks
from lt_monitor.runs.metrics import source_columns
from lt_monitor.runs.silence import Silence
from lt_monitor.runs.speed import RunFacts, Sizes, positive
from lt_monitor.runs.starting import Start
from lt_shared.contracts.recovery_notes import Nodes
from lt_shared.contracts.run_log import SOURCE_LOSS
from lt_shared.data.sample_order.log_notes import PhaseBegins

RECENT_STEPS = 50
CAUGHT = ("traceback", "exit", "killed")
FAULT_FIELDS = ("fault", "cause", "severity", "message", "time", "rank", "node", "xid")


@dataclasses.dataclass(frozen=True)
class Summary:
    """A field is None if the log does not show it. Losses are nats per token.

    `loss` is the last logged loss, `loss_mean` the mean over the last tenth of the logged steps, `loss_change` its difference
    to the mean over the tenth before. Speeds are medians over the last RECENT_STEPS logged steps, `memory_bytes` is their
    maximum. `validation_losses` maps validation sets to their newest loss, `source_losses` does so for the datasets of a blend.
    `scores` has the benchmarks' newest values and their steps. `skipped_steps` and `nan_steps` are sums over the run.
    `lost_seconds` is the duration of the `lost_steps` at the present speed. `checkpoints` and `recovery_seconds` are means of
    the costs that lt-train logs. `fault` is the result of `main_fault`, `ended` the reason of the last attempt's ending, which
    `ended_text` completes for people. `starting` is there before the first step of the last attempt, unless that has ended. A
    `silent` run has not ended but has written nothing for long, so it is probably dead. Neither a silent run nor one that ended
    early has an ETA.
    """

    run: str
    step: int | None
    total_steps: int | None
    phase: str | None
    loss: float | None
    loss_mean: float | None
    loss_change: float | None
    validation_loss: float | None
    best_validation_loss: float | None
    best_validation_step: int | None
    validation_losses: dict[str, float]
    source_losses: dict[str, float]
    scores: dict[str, dict[str, float]]
    consumed_tokens: int | None
    step_seconds: float | None
    tokens_per_second: float | None
    tokens_per_second_per_gpu: float | None
    tflops_per_gpu: float | None
    mfu: float | None
    memory_bytes: int | None
    eta_seconds: float | None
    restarts: int
    lost_steps: int
    lost_seconds: float | None
    recoveries: int
    recovery_seconds: float | None
    nodes: dict[str, int] | None
    checkpoints: dict[str, dict[str, float]]
    checkpoint_step: int | None
    checkpoint_path: str | None
    skipped_steps: int
    nan_steps: int
    faults: int
    fault: Record | None
    ended: str | None
    ended_text: str | None
    starting: dict[str, Any] | None
    silent: bool
    updated: str | None

    @property
    def done_share(self) -> float | None:
        """Return the fraction of completed steps: 0 to 1, or above 1 if the run goes on after its last step."""
        return self.step / self.total_steps if self.step is not None and self.total_steps else None

    def to_record(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def without_time_left(self) -> "Summary":
        """Return this summary for a run that has fallen silent since, without a remaining time; unchanged if the run is over."""
        is_over = self.ended is not None or self.eta_seconds == 0
        return self if is_over else dataclasses.replace(self, silent=True, eta_seconds=None)


def summarize(run: Run, run_facts: RunFacts | None = None, now: float | None = None) -> Summary:
    """Summarize the run at the time `now`, by default the current time. `run_facts` fill in sizes that the log lacks."""
    arguments = run.arguments
    sizes = Sizes.of(arguments, run_facts or RunFacts())
    steps = run.steps
    recent = steps[-RECENT_STEPS:]
    step = int(steps.numbers[-1]) if len(steps) else None
    total_steps = _whole(steps.last("total_steps")) or positive(arguments.get("train_iters"))
    _, losses = steps.finite("loss")
    mean, change = _trend(losses)
    validations = [event for event in run.evaluations if event["loss"] is not None]
    best = min(validations, key=lambda event: float(event["loss"]), default=None)
    seconds = median(speed.step_seconds(recent))
    checkpoint = next(iter(reversed(run.checkpoints)), None)
    faults = run.of_kind("fault")
    costs = FaultCosts.of(event for attempt in run.attempts for event in attempt.events)
    ending = ending_of(run.attempts[-1])
    ended = None if ending is None else ending.reason
    moment = time.time() if now is None else now
    start = Start.of(run) if ended is None else None
    silence = Silence.of(run)
    is_over = ended is not None or (total_steps is not None and step is not None and step >= total_steps)
    is_silent = not is_over and silence.is_too_long(moment)
    return Summary(
        run=run.name,
        step=step,
        total_steps=total_steps,
        phase=_phase(run, step),
        loss=float(losses[-1]) if len(losses) else None,
        loss_mean=mean,
        loss_change=change,
        validation_loss=validations[-1]["loss"] if validations else None,
        best_validation_loss=best["loss"] if best else None,
        best_validation_step=best["step"] if best else None,
        validation_losses=_newest_of_sets(run),
        source_losses=_newest_of_sources(steps),
        scores=scores.newest(run),
        consumed_tokens=_consumed_tokens(steps, sizes),
        step_seconds=seconds,
        tokens_per_second=median(speed.tokens_per_second(recent, sizes)),
        tokens_per_second_per_gpu=median(speed.tokens_per_second_per_gpu(recent, sizes)),
        tflops_per_gpu=median(speed.tflops_per_gpu(recent, sizes)),
        mfu=median(speed.mfu(recent, sizes)),
        memory_bytes=_most(recent.column("memory_bytes")),
        eta_seconds=_eta_seconds(step, total_steps, seconds, is_running=ended is None and not is_silent),
        restarts=run.restarts,
        lost_steps=run.lost_steps,
        lost_seconds=None if seconds is None else round(run.lost_steps * seconds, 3),
        recoveries=costs.recoveries,
        recovery_seconds=costs.mean_recovery_seconds,
        nodes=_nodes(run),
        checkpoints=costs.per_checkpoint(),
        checkpoint_step=checkpoint["step"] if checkpoint else None,
        checkpoint_path=checkpoint.get("path") if checkpoint else None,
        skipped_steps=_total(steps.column("skipped_steps")),
        nan_steps=_total(nan_steps(steps)),
        faults=sum(fault["cause"] != "cascade" for fault in faults),
        fault=main_fault(run),
        ended=ended,
        ended_text=None if ending is None else ending.text,
        starting=None if start is None else _starting(start, moment),
        silent=is_silent,
        updated=_time(silence.updated),
    )


def _starting(start: Start, now: float) -> dict[str, Any]:
    seconds = start.seconds(now)
    return {
        "since": _time(start.since),
        "seconds": None if seconds is None else round(seconds, 1),
        "activity": start.activity,
    }


def main_fault(run: Run) -> Record | None:
    """The fault to look at first: the root cause in the last attempt that ended by faults.

    If no attempt ended by faults, it is a NaN loss at the end of the run, else the last critical fault before a step, else the
    last warning. An exception or an exit before a step was caught and does not count. The record has `advice`, the number of
    the `attempt`, and the FAULT_FIELDS that its line shows. A collective's time-out has `suspect_ranks`, if the log shows them.
    """
    for attempt in reversed(run.attempts):
        faults = ending_faults(attempt)
        chosen = root_cause(faults)
        if chosen is not None:
            return _of_attempt(chosen, attempt) | _suspects(chosen, faults, positive(run.arguments.get("world_size")))
    recent = run.steps[-NAN_STEPS:]
    if len(recent) == NAN_STEPS and bool((nan_steps(recent) > 0).all()):
        message = f"the last {NAN_STEPS} losses are not a number"
        return _of_attempt({"fault": "nan", "cause": "root", "severity": "critical", "message": message}, run.attempts[-1])
    for severity in ("critical", "warning"):
        for attempt in reversed(run.attempts):
            faults_in_log = [
                fault for fault in attempt.of_kind("fault") if fault["severity"] == severity and fault["fault"] not in CAUGHT
            ]
            if faults_in_log:
                return _of_attempt(faults_in_log[-1], attempt)
    return None


def _of_attempt(fault: Record, attempt: Attempt) -> Record:
    details = {field: fault[field] for field in FAULT_FIELDS if fault.get(field) is not None}
    return {"attempt": attempt.number} | details | {"advice": advice(fault).text}


def _suspects(chosen: Record, critical: Sequence[Record], world_size: int | None) -> Record:
    """For a collective's time-out, find the ranks that the reporting ranks probably waited for."""
    if chosen["fault"] != "nccl-timeout":
        return {}
    timeouts = [fault for fault in critical if fault["fault"] == "nccl-timeout" and fault["cause"] == chosen["cause"]]
    suspects, _ = suspect_ranks(timeouts, world_size)
    return {"suspect_ranks": suspects} if suspects else {}


def nan_steps(steps: Steps) -> np.ndarray:
    """Return the number of steps per line with a NaN loss, shape (points,), from the trainer's count or from `loss: nan`."""
    counted = steps.column("nan_steps")
    return np.asarray(np.maximum(np.where(np.isfinite(counted), counted, 0), np.isinf(steps.column("loss"))))


def median(values: np.ndarray) -> float | None:
    """The median of the finite values, or None if there are none."""
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else None


def _trend(losses: np.ndarray) -> tuple[float | None, float | None]:
    """Mean of the last tenth, and its difference to the tenth before."""
    if not len(losses):
        return None, None
    tenth = max(1, len(losses) // 10)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(losses[-tenth:].mean())
        before = losses[-2 * tenth : -tenth]
        change = mean - float(before.mean()) if len(before) else None
    return (mean if math.isfinite(mean) else None), (change if change is not None and math.isfinite(change) else None)


def _consumed_tokens(steps: Steps, sizes: Sizes) -> int | None:
    printed = steps.last("consumed_tokens")
    if printed is not None:
        return int(printed)
    samples = steps.last("consumed_samples")
    if samples is None and sizes.global_batch_size and len(steps):
        samples = float(steps.numbers[-1]) * sizes.global_batch_size
    return None if samples is None or sizes.seq_length is None else int(samples) * sizes.seq_length


def _most(values: np.ndarray) -> int | None:
    finite = values[np.isfinite(values)]
    return int(finite.max()) if len(finite) else None


def _total(values: np.ndarray) -> int:
    return int(values[np.isfinite(values)].sum())


def _whole(value: float | None) -> int | None:
    return None if value is None or value < 1 else int(value)


def _eta_seconds(step: int | None, total_steps: int | None, seconds: float | None, is_running: bool) -> float | None:
    """0 after the last step. A run that neither is done nor runs has none."""
    if step is None or total_steps is None:
        return None
    if step >= total_steps:
        return 0.0
    return (total_steps - step) * seconds if is_running and seconds is not None else None


def _time(seconds: float | None) -> str | None:
    """ISO 8601 in local time."""
    return None if seconds is None else datetime.datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def _phase(run: Run, step: int | None) -> str | None:
    """The last phase of a data schedule that had begun at `step`."""
    phase_fields = [event.get("fields") or {} for event in run.of_kind("note") if event["note"] == PhaseBegins.NOTE]
    names = [(fields.get("step"), fields.get("name")) for fields in phase_fields]
    named_phases = [(first, name) for first, name in names if isinstance(first, int) and isinstance(name, str)]
    return max(((first, name) for first, name in named_phases if first <= (step or 0)), default=(0, None))[1]


def _nodes(run: Run) -> dict[str, int] | None:
    """The nodes of a run that may lose some: `nodes` of `all_nodes` since `step`. None if the log does not tell them."""
    fields = [event.get("fields") or {} for event in run.of_kind("note") if event["note"] == Nodes.NOTE]
    counts = {name: fields[-1].get(name) for name in ("nodes", "all_nodes", "step")} if fields else {}
    numbers = {name: count for name, count in counts.items() if isinstance(count, int)}
    return numbers if numbers.keys() == {"nodes", "all_nodes", "step"} else None


def _newest_of_sets(run: Run) -> dict[str, float]:
    losses_by_set = {name: [event["loss"] for event in events] for name, events in run.validation_sets.items()}
    finite_by_set = {name: [loss for loss in losses if loss is not None] for name, losses in losses_by_set.items()}
    return {name: losses[-1] for name, losses in finite_by_set.items() if losses}


def _newest_of_sources(steps: Steps) -> dict[str, float]:
    """Return the datasets' newest losses. A rarely sampled dataset may have its newest loss in an earlier line."""
    losses_by_source = {name: steps.finite(name)[1] for name in source_columns(steps)}
    return {name.removeprefix(SOURCE_LOSS): float(losses[-1]) for name, losses in losses_by_source.items() if len(losses)}
