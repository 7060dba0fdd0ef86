"""The alert rules: pure functions from the state of a run to findings.

`on_record` checks a record that was just taken, `on_pass` checks the run after all records of a pass. External facts (the clock,
whether a checkpoint exists) come in a `Snapshot`, so a rule gives the same answer for the same input.
"""

import dataclasses
import itertools
import signal
import statistics
from collections.abc import Callable, Iterator

from lt_monitor.alerts import trend_rules
from lt_monitor.alerts.thresholds import Thresholds
from lt_monitor.events.alert_findings import Finding, duration
from lt_monitor.events.records import Record
from lt_monitor.runs.faults import failure_causes
from lt_monitor.runs.run_state import RunState
from lt_shared.console import counted

STOPPED_JOB_STATES = {
    "PREEMPTED": ("preemption", "warning"),
    "TIMEOUT": ("time-limit", "warning"),
    "DEADLINE": ("time-limit", "warning"),
    "NODE_FAIL": ("node-failure", "critical"),
    "BOOT_FAIL": ("node-failure", "critical"),
    "OUT_OF_MEMORY": ("host-out-of-memory", "critical"),
    "CANCELLED": ("cancelled", "info"),
    "FAILED": ("job-failed", "critical"),
}
# Slurm says 0:53 of a job whose output file it cannot open.
UNWRITABLE_LOG_SIGNAL = 53
SLOWDOWNS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")


@dataclasses.dataclass(frozen=True)
class Damage:
    """The problem of a checkpoint, and whether this machine sees the checkpoint's parent directory."""

    problem: str
    is_visible: bool = True


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """External facts at the time of a pass.

    `modified` has the modification times of logs, `damaged` maps runs to the damage of their checkpoint.
    """

    now: float
    modified: dict[str, float] = dataclasses.field(default_factory=dict)
    damaged: dict[str, Damage] = dataclasses.field(default_factory=dict)


def on_record(state: RunState, record: Record, thresholds: Thresholds) -> Iterator[Finding]:
    """The findings about `record`, which `state` already contains."""
    for rule in _BY_KIND.get(record["kind"], ()):
        yield from rule(state, record, thresholds)
    if record["kind"] == "step" and state.loss_trend is not None and not state.loss_trend.open_lines:
        yield from trend_rules.divergence(state, record, thresholds)


def on_pass(state: RunState, snapshot: Snapshot, thresholds: Thresholds) -> Iterator[Finding]:
    """The findings that hold now, causes first."""
    yield from failures(state)
    for rule in (_hang, _straggling, _slow_gpus, _throughput_drop, _checkpoint_stale, _checkpoint_missing):
        yield from rule(state, snapshot, thresholds)


def failures(state: RunState) -> Iterator[Finding]:
    """The findings about the faults since the last step, and about a restart that failed as the attempt before."""
    yield from trend_rules.repeated_failure(state)
    yield from failure_causes.failure_findings(state)


def _nan(state: RunState, record: Record, thresholds: Thresholds) -> Iterator[Finding]:
    message = None
    if record.get("nan_steps"):
        message = f"{counted(record['nan_steps'], 'step')} with a loss that is not a number"
    elif "loss" in record and record["loss"] is None:
        message = "the loss is not a number"
    elif "grad_norm" in record and record["grad_norm"] is None:
        message = "the gradient norm is not a number"
    elif state.maximum_loss is not None and state.losses_missing >= thresholds.of("nan", "lines_without_loss"):
        message = f"no loss in the last {state.losses_missing} step lines"
    if message:
        yield _at_step(state, record, "nan", "critical", message, 100)


def _loss_spike(state: RunState, record: Record, thresholds: Thresholds) -> Iterator[Finding]:
    loss, median = record.get("loss"), state.loss_median()
    if loss is None or median is None or loss <= median + thresholds.of("loss-spike", "minimum_rise") * abs(median):
        return
    before = [step["loss"] for step in state.recent[:-1] if step.get("loss") is not None]
    if len(before) < thresholds.of("loss-spike", "points"):
        return
    median = statistics.median(before)
    deviation = 1.4826 * statistics.median(abs(value - median) for value in before)
    score = (loss - median) / deviation if deviation else float("inf")
    if score > thresholds.of("loss-spike", "score") or loss > thresholds.of("loss-spike", "maximum_factor") * max(before):
        quiet_lines = int(thresholds.of("loss-spike", "quiet_lines"))
        message = f"loss {loss:.4g}, the {len(before)} step lines before had a median of {median:.4g}"
        yield _at_step(state, record, "loss-spike", "warning", message, quiet_lines, {"loss": loss, "median": median})


def _skipped_steps(state: RunState, record: Record, thresholds: Thresholds) -> Iterator[Finding]:
    trained = state.step_lines - state.skipped_in_a_row
    if state.skipped_in_a_row >= thresholds.of("skipped-steps", "in_a_row") and trained >= thresholds.of(
        "skipped-steps", "warm_up_lines"
    ):
        scale = f", loss scale {record['loss_scale']:g}" if record.get("loss_scale") else ""
        message = f"{state.skipped_in_a_row} step lines in a row with skipped steps{scale}"
        yield _at_step(state, record, "skipped-steps", "warning", message, 100)


def _at_step(
    state: RunState, record: Record, rule: str, severity: str, message: str, quiet_lines: int, fields: Record | None = None
) -> Finding:
    """A finding about a step, the same one for all steps of an episode."""
    episode = state.episode(rule, state.step_lines, quiet_lines)
    step_fields = {"step": record["step"], "attempt": len(state.attempts)} | (fields or {})
    key = f"{rule}:{len(state.attempts)}:{episode}"
    return Finding(rule, severity, state.run, key, f"step {record['step']}: {message}", step_fields)


def _chosen(record: Record, *names: str) -> Record:
    return {name: record[name] for name in names if name in record}


def _note(state: RunState, record: Record, thresholds: Thresholds) -> Iterator[Finding]:
    if record["note"] == "hyperpod":
        key = f"hyperpod:{len(state.attempts)}:{state.attempt.last_step}"
        fields = {"attempt": len(state.attempts), "step": state.attempt.last_step} | record.get("fields", {})
        yield Finding("hyperpod", "info", state.run, key, record["message"], fields)
    elif record["note"] == "socket":
        yield Finding("no-efa", "warning", state.run, f"no-efa:{len(state.attempts)}", record["message"])
    elif record["note"] == "waiting-for-data":
        fields = {"attempt": len(state.attempts), "step": state.attempt.last_step} | record.get("fields", {})
        key = f"waiting-for-data:{len(state.attempts)}:{fields['step']}"
        yield Finding("waiting-for-data", "warning", state.run, key, record["message"], fields)
    elif record["note"] == "straggler":
        yield from _slow_rank(state, record, thresholds)
    elif record["note"] == "missing":
        yield Finding("blind", "warning", state.run, f"blind:{record['message']}", record["message"])


def _slow_rank(state: RunState, record: Record, thresholds: Thresholds) -> Iterator[Finding]:
    """Megatron's own detector prints the slowest and the fastest rank all the time; it is news when they are far apart."""
    slowest, fastest = (_value_and_rank(record.get("fields", {}).get(name)) for name in ("MnEtpt", "MxEtpt"))
    if slowest and fastest and fastest[0] > thresholds.of("straggling", "ratio") * slowest[0]:
        message = f"rank {slowest[1]} computes at {slowest[0]:g} TFLOP/s, rank {fastest[1]} at {fastest[0]:g}"
        fields = {"attempt": len(state.attempts), "step": state.attempt.last_step, "rank": slowest[1]}
        key = f"straggling:{len(state.attempts)}:rank {slowest[1]}"
        yield Finding("straggling", "warning", state.run, key, message, fields)


def _value_and_rank(field: object) -> tuple[float, int] | None:
    if not isinstance(field, dict) or type(field.get("rank")) is not int or type(field.get("value")) not in (int, float):
        return None
    return (field["value"], field["rank"]) if field["value"] > 0 else None


def _job(state: RunState, record: Record, thresholds: Thresholds) -> Iterator[Finding]:
    # Includes the fields that Slurm's controller reported earlier.
    record = record | state.job
    stopped = STOPPED_JOB_STATES.get(record["state"])
    if stopped is None or (stopped[0] == "job-failed" and state.has_failed):
        return
    rule, severity = stopped
    codes = [record["exit_code"]] if record.get("exit_code") else record.get("exit_codes") or ()
    code = f", exit code {' or '.join(map(str, codes))}" if codes else ""
    code += f", {_signal_text(record['signal'])}" if record.get("signal") else ""
    message = f"job {record['job']} is {record['state']}{code}{', ' + record['reason'] if record.get('reason') else ''}"
    fields = _chosen(record, "job", "state", "exit_code", "exit_codes", "signal", "node")
    yield Finding(
        rule, severity, state.run, f"job:{record['job']}:{record.get('restarts', 0)}:{record['state']}", message, fields
    )


def _signal_text(number: int) -> str:
    if number == UNWRITABLE_LOG_SIGNAL:
        return "Slurm could not open its output file (0:53)"
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def _gpu(state: RunState, record: Record, thresholds: Thresholds) -> Iterator[Finding]:
    name = f"gpu {record.get('gpu')} of {record['node']}"
    fields = _chosen(record, "gpu", "uuid", "node")
    errors = record.get("ecc_uncorrected_errors")
    if errors:
        key = f"gpu-errors:{record.get('uuid', name)}:{errors:g}"
        yield Finding("gpu-errors", "critical", state.run, key, f"{name}: {errors:g} uncorrected memory errors", fields)
    limits = record.get("clock_limits")
    slowed = [reason for reason in limits if reason in SLOWDOWNS] if isinstance(limits, list) else []
    if slowed:
        key = f"gpu-slowdown:{record.get('uuid', name)}:{','.join(slowed)}"
        heat = f" at {record['temperature_celsius']:g} C" if record.get("temperature_celsius") is not None else ""
        yield Finding("gpu-slowdown", "warning", state.run, key, f"{name}{heat}: clocks limited by {', '.join(slowed)}", fields)


def _neuron(state: RunState, record: Record, thresholds: Thresholds) -> Iterator[Finding]:
    place = f"{record['node']}{''.join(f', {key} {record[key]}' for key in ('device', 'core', 'pid') if key in record)}"
    counts = {"uncorrected memory errors": record.get("ecc_uncorrected_errors")}
    counts |= {f"{name} errors": count for name, count in record.get("errors", {}).items() if name in ("hardware", "numerical")}
    for name, count in counts.items():
        if type(count) in (int, float) and count:
            key = f"neuron-errors:{place}:{name}:{count:g}"
            fields = _chosen(record, "node", "device", "core", "pid")
            yield Finding("neuron-errors", "critical", state.run, key, f"{place}: {count:g} {name}", fields)


def _hang(state: RunState, snapshot: Snapshot, thresholds: Thresholds) -> Iterator[Finding]:
    waiting = hang_limit(state, thresholds)
    if waiting is None or state.has_ended:
        return
    limit, message = waiting
    since = _last_sign(state)
    if since is None or snapshot.now - since <= limit or not _may_run(state, snapshot, thresholds.of("hang", "maximum_seconds")):
        return
    step = state.attempt.last_step
    key = f"hang:{len(state.attempts)}:{step}:{state.saving is not None}"
    silent = snapshot.now - since
    fields = {"attempt": len(state.attempts), "step": step, "seconds": round(silent, 1), "limit_seconds": round(limit, 1)}
    yield Finding(
        "hang", "critical", state.run, key, f"{message} for {duration(silent)}, expected within {duration(limit)}", fields
    )


def hang_limit(state: RunState, thresholds: Thresholds) -> tuple[float, str] | None:
    """How long the run may be silent now, and what then is missing; None when it does not train."""
    if state.attempt.last_step is None:
        if not (state.step_lines or state.arguments or state.attempt.resumed_at is not None):
            return None
        return thresholds.of("hang", "startup_seconds"), "started, but no step"
    interval = _line_steps(state)
    median = state.median_step_seconds() or 0.0
    limit = max(thresholds.of("hang", "minimum_seconds"), thresholds.of("hang", "step_factor") * median, 2 * median * interval)
    if state.saving is not None:
        checkpoint_limit = max(limit, thresholds.of("hang", "checkpoint_seconds"))
        return checkpoint_limit, f"step {state.attempt.last_step}, a checkpoint was begun, and nothing"
    return limit, f"no step after {state.attempt.last_step}"


def _line_steps(state: RunState) -> int:
    """How many steps lie between two step lines: a log that prints every 100 steps is silent in between."""
    numbers: list[int] = [step["step"] for step in state.recent]
    return max([1, *(after - before for before, after in itertools.pairwise(numbers))])


def _last_sign(state: RunState) -> float | None:
    """When the run last made progress: by the times in its lines, and where these have none by when a line was read."""
    if state.attempt.last_step is not None:
        read = state.last_step_time
    else:
        read = state.attempt.end if state.attempt.end is not None else state.attempt_seen
    return max(read, state.saving) if read is not None and state.saving is not None else read


def _may_run(state: RunState, snapshot: Snapshot, maximum_seconds: float) -> bool:
    """Whether a log may still be written. A job that died without a word, years ago or on another cluster, is no hang.

    Slurm knows. Without it two kinds of log are taken for dead: those whose last time is older than `maximum_seconds`, and those
    without times that have not changed since they were first read.
    """
    if state.job:
        return bool(state.job.get("state") == "RUNNING")
    totals = state.attempt
    if totals.end is not None and totals.begin is not None:
        return snapshot.now - max(totals.end, totals.begin + totals.step_seconds) <= maximum_seconds
    modified = max((snapshot.modified[file] for file in state.logs if file in snapshot.modified), default=None)
    return modified is None or state.first_seen is None or modified > state.first_seen


def _straggling(state: RunState, snapshot: Snapshot, thresholds: Thresholds) -> Iterator[Finding]:
    lines = int(thresholds.of("straggling", "lines"))
    step_durations = [step["step_seconds"] for step in state.recent if step.get("step_seconds")]
    median = state.attempt.median_seconds()
    if state.is_over or len(step_durations) < min(2 * lines, 100) or median is None:
        return
    now = statistics.median(step_durations[-lines:])
    if now > thresholds.of("straggling", "ratio") * median:
        key = f"straggling:{len(state.attempts)}:{state.episode('straggling', state.step_lines, 2 * lines)}"
        message = f"steps take {now:.3g} s, {now / median:.2f} times the median of this attempt ({median:.3g} s)"
        fields = {"attempt": len(state.attempts), "step": state.attempt.last_step, "step_seconds": now, "median_seconds": median}
        yield Finding("straggling", "warning", state.run, key, message, fields)


def _slow_gpus(state: RunState, snapshot: Snapshot, thresholds: Thresholds) -> Iterator[Finding]:
    """Compare the clocks of a node's busy devices: the slowest device sets the pace."""
    busy = {name: sample for name, sample in state.gpus.items() if (sample.get("utilization") or 0) >= 0.5}
    clocks = {name: sample["sm_clock_hertz"] for name, sample in busy.items() if sample.get("sm_clock_hertz")}
    if len(clocks) < 2:
        return
    median = statistics.median(clocks.values())
    for name, clock in clocks.items():
        if clock < thresholds.of("straggling", "clock_ratio") * median:
            sample = busy[name]
            message = f"gpu {sample.get('gpu')} runs at {clock / 1e6:.0f} MHz, the median of the node is {median / 1e6:.0f} MHz"
            fields = {"gpu": sample.get("gpu"), "uuid": sample.get("uuid"), "sm_clock_hertz": clock}
            yield Finding("straggling", "warning", state.run, f"straggling:gpu:{name}", message, fields)


def _throughput_drop(state: RunState, snapshot: Snapshot, thresholds: Thresholds) -> Iterator[Finding]:
    median, best = state.attempt.median_seconds(), state.best_seconds
    if state.is_over or median is None or best is None or len(state.recent) < 20:
        return
    if best < thresholds.of("throughput-drop", "ratio") * median:
        message = f"attempt {len(state.attempts)} takes {median:.3g} s a step, an earlier one took {best:.3g} s"
        fields = {"attempt": len(state.attempts), "step": state.attempt.last_step, "step_seconds": median, "best_seconds": best}
        yield Finding("throughput-drop", "warning", state.run, f"throughput-drop:{len(state.attempts)}", message, fields)


def _checkpoint_stale(state: RunState, snapshot: Snapshot, thresholds: Thresholds) -> Iterator[Finding]:
    """Measured at the last step: a run that hangs has one finding already. By the log's clock alone, or by this machine's."""
    interval, last = state.save_interval_seconds(), state.last_step_time
    if state.last_at is not None:
        begins = [state.checkpoint.get("at") if state.checkpoint.get("exact") else None, state.attempt.begin]
    else:
        begins = [state.checkpoint.get("seen"), state.attempt_seen]
    since = max((time for time in begins if time is not None), default=None)
    if state.has_ended or interval is None or last is None or since is None:
        return
    limit = max(thresholds.of("checkpoint-stale", "minimum_seconds"), thresholds.of("checkpoint-stale", "intervals") * interval)
    if last - since > limit:
        saved = f"the last one is of step {state.checkpoint['step']}" if state.checkpoint else "there is none"
        message = f"no checkpoint for {duration(last - since)}, they come every {duration(interval)}; {saved}"
        key = f"checkpoint-stale:{len(state.attempts)}:{state.checkpoint.get('step')}"
        fields = {
            "attempt": len(state.attempts),
            "step": state.attempt.last_step,
            "checkpoint_step": state.checkpoint.get("step"),
        }
        yield Finding("checkpoint-stale", "warning", state.run, key, message, fields)


def _checkpoint_missing(state: RunState, snapshot: Snapshot, thresholds: Thresholds) -> Iterator[Finding]:
    """Critical where the directory is here and the checkpoint is not; another machine may just not have the directory.

    The log of a job that has ended may have been copied from that machine.
    """
    damage = snapshot.damaged.get(state.run)
    is_live = not state.has_ended and _may_run(state, snapshot, thresholds.of("hang", "maximum_seconds"))
    if damage and (damage.is_visible or is_live):
        step = state.checkpoint["step"]
        message = f"the log says that the checkpoint of step {step} was saved, but {damage.problem}"
        fields = {"attempt": len(state.attempts), "checkpoint_step": step, "path": state.checkpoint.get("path")}
        severity = "critical" if damage.is_visible else "warning"
        yield Finding("checkpoint-missing", severity, state.run, f"checkpoint-missing:{step}:{severity}", message, fields)


Rule = Callable[[RunState, Record, Thresholds], Iterator[Finding]]
_BY_KIND: dict[str, tuple[Rule, ...]] = {
    "step": (_nan, _loss_spike, _skipped_steps),
    "note": (_note, trend_rules.rank_wait),
    "job": (_job,),
    "gpu": (_gpu,),
    "neuron": (_neuron,),
}
