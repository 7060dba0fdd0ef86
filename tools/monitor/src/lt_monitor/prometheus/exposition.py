"""The metrics of runs in Prometheus' text format, for the textfile collector of node_exporter.

Names carry base units, counters end in `_total`, and there are no time stamps (the collector drops a file that has them) and no
labels but the run, a fixed set of causes and the monitor: a label for a step or a rank would make a new series each. A value
that is not known has no line; a loss that is not a number is NaN.

node_exporter serves all files of its directories as one, and keeps one of two equal series without an error. The label `monitor`
tells the series of two files apart: when each monitor ran last, and runs whose logs have the same relative path.
"""

import dataclasses
import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping

from lt_monitor.alerts.rules import hang_limit
from lt_monitor.alerts.thresholds import Thresholds
from lt_monitor.events.records import FAULTS
from lt_monitor.events.steps import Steps
from lt_monitor.runs import speed, time_accounting
from lt_monitor.runs.run_state import RunState, positive
from lt_monitor.runs.speed import RunFacts, Sizes

ENDED_RUN_SECONDS = 3600.0
RECENT_LINES = 20
NO_FACTS = RunFacts()


@dataclasses.dataclass(frozen=True)
class Metric:
    """`label` is the one that a metric has besides `run` and `monitor`."""

    name: str
    kind: str
    help: str
    label: str | None = None


METRICS = (
    Metric("lt_train_step", "gauge", "Last training step that the log shows."),
    Metric("lt_train_total_steps", "gauge", "Step at which the run ends."),
    Metric("lt_train_loss", "gauge", "Training loss of the last step, nats per token."),
    Metric("lt_train_validation_loss", "gauge", "Last validation loss, nats per token."),
    Metric("lt_train_grad_norm", "gauge", "Gradient norm of the last step."),
    Metric("lt_train_learning_rate", "gauge", "Learning rate of the last step."),
    Metric("lt_train_loss_scale", "gauge", "Loss scale of the last step."),
    Metric("lt_train_step_seconds", "gauge", "Median duration of a step over the last step lines."),
    Metric("lt_train_attempt_step_seconds", "gauge", "Median duration of a step since the last restart."),
    Metric("lt_train_tokens_per_second", "gauge", "Median tokens per second, summed over the GPUs, in the last step lines."),
    Metric(
        "lt_train_tflops_per_gpu",
        "gauge",
        "TFLOP/s per GPU of the last step, as the trainer counts them, else as lt-monitor does.",
    ),
    Metric(
        "lt_train_mfu_ratio",
        "gauge",
        "Model FLOPs utilization of the last step, as the trainer counts it, else as lt-monitor does.",
    ),
    Metric("lt_train_memory_bytes", "gauge", "Memory of a GPU at the last step."),
    Metric("lt_train_consumed_samples", "gauge", "Samples that the run has consumed."),
    Metric("lt_train_skipped_steps_total", "counter", "Steps without an update of the weights."),
    Metric("lt_train_nan_steps_total", "counter", "Steps whose loss was not a number."),
    Metric("lt_train_restarts_total", "counter", "How often the run was restarted or resumed."),
    Metric("lt_train_lost_steps_total", "counter", "Steps that were repeated after a restart."),
    Metric("lt_train_faults_total", "counter", "Lines that report a fault.", "fault"),
    Metric("lt_train_failed", "gauge", "1 when a critical fault followed the last step."),
    Metric("lt_train_running", "gauge", "1 while the run is expected to make steps."),
    Metric("lt_train_goodput_ratio", "gauge", "Productive share of the allocated time."),
    Metric("lt_train_productive_seconds_total", "counter", "Time in steps that counted."),
    Metric("lt_train_badput_seconds_total", "counter", "Lost time by reason.", "reason"),
    Metric("lt_train_last_step_timestamp_seconds", "gauge", "When the last step was logged."),
    Metric("lt_train_hang_limit_seconds", "gauge", "How long the run may be silent before it counts as hanging."),
    Metric("lt_train_last_checkpoint_timestamp_seconds", "gauge", "When the last checkpoint was complete."),
    Metric("lt_train_last_checkpoint_step", "gauge", "Step of the last complete checkpoint."),
    Metric("lt_train_checkpoint_interval_seconds", "gauge", "Median time between checkpoints."),
    Metric("lt_train_checkpoints_total", "counter", "Checkpoints whose line says what they cost.", "store"),
    Metric("lt_train_checkpoint_stall_seconds_total", "counter", "How long training waited for checkpoints.", "store"),
    Metric("lt_train_checkpoint_write_seconds_total", "counter", "From steps until their checkpoints were complete.", "store"),
    Metric("lt_train_last_local_checkpoint_step", "gauge", "Step of the last checkpoint on the nodes' own disks."),
    Metric("lt_train_recoveries_total", "counter", "Failures after which the run made steps again."),
    Metric("lt_train_recovery_seconds_total", "counter", "From the last steps before failures to the first ones after."),
    Metric("lt_train_last_recovery_seconds", "gauge", "The same of the last failure."),
)
LAST_RUN = Metric("lt_monitor_last_run_timestamp_seconds", "gauge", "When lt-monitor prom wrote this file.")
BY_NAME = {metric.name: metric for metric in (*METRICS, LAST_RUN)}

Sample = tuple[str, str | None, float]
LIKE_AN_ESCAPE = re.compile(r"\\(?=u[0-9a-f]{4}|U[0-9a-f]{8})")


def samples(state: RunState, now: float, run_facts: RunFacts) -> Iterator[Sample]:
    """Yield a run's known metrics as (name, label value or None, value)."""
    worked_out = _worked_out(state, run_facts)
    last = state.last
    limits = Thresholds({})
    recent = state.recent[-RECENT_LINES:]
    values: list[tuple[str, float | None]] = [
        ("step", last.get("step")),
        ("total_steps", last.get("total_steps") or positive(state.arguments.get("train_iters"))),
        ("loss", _number(last, "loss")),
        ("validation_loss", _number(state.validation, "loss")),
        ("grad_norm", _number(last, "grad_norm")),
        ("learning_rate", _number(last, "learning_rate")),
        ("loss_scale", _number(last, "loss_scale")),
        ("step_seconds", _median(step.get("step_seconds") for step in recent)),
        ("attempt_step_seconds", state.attempt.median_seconds()),
        ("tokens_per_second", _median(step.get("tokens_per_second") for step in recent) or worked_out["tokens_per_second"]),
        ("tflops_per_gpu", _number(last, "tflops_per_gpu") if "tflops_per_gpu" in last else worked_out["tflops_per_gpu"]),
        ("mfu_ratio", worked_out["mfu"] if last.get("mfu") is None else last["mfu"]),
        ("memory_bytes", last.get("memory_bytes")),
        ("consumed_samples", last.get("consumed_samples")),
        ("skipped_steps_total", state.skipped_steps),
        ("nan_steps_total", state.nan_steps),
        ("failed", float(state.has_failed)),
        ("running", float(is_running(state))),
        ("last_step_timestamp_seconds", state.last_step_time),
        ("last_checkpoint_timestamp_seconds", state.checkpoint.get("at")),
        ("last_checkpoint_step", state.checkpoint.get("step")),
        ("checkpoint_interval_seconds", state.save_interval_seconds()),
    ]
    waiting = hang_limit(state, limits)
    if waiting is not None:
        values.append(("hang_limit_seconds", waiting[0]))
    account = time_accounting.account(state.attempts)
    values += [
        ("restarts_total", account.restarts),
        ("lost_steps_total", account.lost_steps),
        ("goodput_ratio", account.goodput),
        ("productive_seconds_total", account.productive_seconds),
        ("last_local_checkpoint_step", state.costs.local_step),
        ("recoveries_total", state.costs.recoveries),
        ("recovery_seconds_total", state.costs.recovery_seconds),
        ("last_recovery_seconds", state.costs.last_recovery_seconds),
    ]
    for name, value in values:
        if value is not None:
            yield (f"lt_train_{name}", None, float(value))
    for fault in FAULTS:
        yield ("lt_train_faults_total", fault, float(state.fault_counts.get(fault, 0)))
    costs = state.costs
    of_stores: dict[str, Mapping[str, float]] = {
        "s": costs.checkpoints,
        "_stall_seconds": costs.stall_seconds,
        "_write_seconds": costs.write_seconds,
    }
    for name, by_store in of_stores.items():
        for store, value in by_store.items():
            yield (f"lt_train_checkpoint{name}_total", store, float(value))
    for cause, seconds in account.lost_seconds.items():
        yield ("lt_train_badput_seconds_total", cause, seconds)


def _worked_out(state: RunState, run_facts: RunFacts) -> dict[str, float | None]:
    """Speeds of the last step that its line may not have, from the sizes of the model, as `summarize` works them out."""
    steps, sizes = Steps.from_records([state.last]), Sizes.of(state.arguments, run_facts)
    measures = (speed.tokens_per_second, speed.tflops_per_gpu, speed.mfu)
    return {measure.__name__: value if math.isfinite(value := float(measure(steps, sizes)[0])) else None for measure in measures}


def is_running(state: RunState) -> bool:
    """Whether steps are to be expected: not after its end, nor when the scheduler says that its job does not run."""
    return bool(state.step_lines) and not state.has_ended and state.job.get("state", "RUNNING") == "RUNNING"


def render(states: Iterable[RunState], now: float, run_facts: RunFacts = NO_FACTS, monitor: str = "") -> str:
    """The whole text, see `blocks`."""
    return "".join(blocks(states, now, run_facts, monitor))


def blocks(states: Iterable[RunState], now: float, run_facts: RunFacts = NO_FACTS, monitor: str = "") -> Iterator[str]:
    """Yield the lines metric by metric: 10,000 runs take 60 MB, which should not be in memory three times.

    Runs that ended an hour ago are omitted, because node_exporter would serve their last values for ever. `monitor` names the
    writer. All series carry it as a label: their file may lie beside the files of other monitors.
    """
    writer = f'monitor="{escape(monitor)}"'
    lines: dict[str, list[str]] = {metric.name: [] for metric in METRICS}
    for state in states:
        if not state.step_lines or (state.is_over and now - _end(state, now) > ENDED_RUN_SECONDS):
            continue
        run = escape(state.run)
        for name, label, value in samples(state, now, run_facts):
            own_label = f',{BY_NAME[name].label}="{escape(label)}"' if label is not None else ""
            lines[name].append(f'{name}{{run="{run}"{own_label},{writer}}} {_shown(value)}')
    lines[LAST_RUN.name] = [f"{LAST_RUN.name}{{{writer}}} {_shown(now)}"]
    for name in list(lines):
        if series := lines.pop(name):
            head = (f"# HELP {name} {BY_NAME[name].help}", f"# TYPE {name} {BY_NAME[name].kind}")
            yield "\n".join((*head, *series)) + "\n"


def _end(state: RunState, now: float) -> float:
    return float(state.end["at"]) if state.end else state.last_step_time or now


def escape(value: str) -> str:
    """A label value: backslash, quote and newline as the format says, and other control characters shown, not sent."""
    # A backslash that looks like such an escape is escaped itself: one label for two runs would make the whole file invalid.
    shown = LIKE_AN_ESCAPE.sub(r"\\u005c", value)
    if not shown.isprintable():
        shown = "".join(one if one.isprintable() or one == "\n" else _unicode_escape(one) for one in shown)
    return shown.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _unicode_escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"


def _number(record: dict[str, float | None], field: str) -> float | None:
    """A field that is there without a number is NaN: null is how JSON says that."""
    value = record.get(field)
    return float("nan") if field in record and value is None else value


def _median(values: Iterable[float | None]) -> float | None:
    finite = [value for value in values if value]
    return statistics.median(finite) if finite else None


def _shown(value: float) -> str:
    if value != value:
        return "NaN"
    return str(int(value)) if value == int(value) and abs(value) < 1 << 53 else repr(value)
