"""Rules that compare a run with its own past: a slow rise of the loss, a failure like the one before, ranks that wait for one."""

from collections.abc import Iterator

from lt_monitor.alerts.thresholds import Thresholds
from lt_monitor.events.alert_findings import Finding
from lt_monitor.events.records import Record
from lt_monitor.runs.faults.repeated_failures import failure_of, is_repeated
from lt_monitor.runs.loss_trend import FIRST_LINES
from lt_monitor.runs.rank_waits import DATA_TIMERS
from lt_monitor.runs.run_state import RunState

# Losses near zero, as of reinforcement learning, have no meaningful ratio.
MINIMUM_RISE_NATS = 0.3
MINIMUM_LINES = 100


def divergence(state: RunState, record: Record, thresholds: Thresholds) -> Iterator[Finding]:
    """A loss that has risen through thousands of steps and still rises."""
    trend = state.loss_trend
    if trend is None or trend.open_lines or state.step_lines % FIRST_LINES:
        return
    rise = trend.rise()
    if rise is None or rise.lines < MINIMUM_LINES:
        return
    least = max(thresholds.of("divergence", "minimum_rise") * rise.low, MINIMUM_RISE_NATS)
    least = max(least, thresholds.of("divergence", "score") * rise.noise)
    if rise.high - rise.low <= least or rise.last_step - rise.first_step < thresholds.of("divergence", "minimum_steps"):
        return
    episode = state.episode("divergence", state.step_lines, 8 * trend.lines)
    message = (
        f"step {rise.last_step}: the loss has risen from {rise.low:.4g} around step {rise.first_step} to {rise.high:.4g} and"
        f" still rises: go back to a checkpoint of step {rise.first_step} or before"
    )
    fields: Record = {"step": rise.last_step, "attempt": len(state.attempts), "low_step": rise.first_step}
    fields |= {"low": round(rise.low, 6), "high": round(rise.high, 6)}
    yield Finding("divergence", "warning", state.run, f"divergence:{len(state.attempts)}:{episode}", message, fields)


def repeated_failure(state: RunState) -> Iterator[Finding]:
    """A restart that failed as the attempt before did."""
    before = state.failed_before
    if not before or before["attempt"] != len(state.attempts) - 1:
        return
    step = state.attempt.last_step
    earlier, now = failure_of(before["faults"], before["step"]), failure_of(state.faults, step)
    if now is None or not is_repeated(earlier, now):
        return
    place = "before the first step" if step is None else f"at step {step}"
    attempts = f"attempts {before['attempt']} and {len(state.attempts)}"
    message = f"{attempts} both failed {place} with {now['fault']}: stop instead of restarting; {now['message']}"
    fields = {"attempt": len(state.attempts), "step": step, "fault": now["fault"], "before": earlier}
    key = f"repeated-failure:{len(state.attempts)}:{step}"
    yield Finding("repeated-failure", "critical", state.run, key, message, fields)


def rank_wait(state: RunState, record: Record, thresholds: Thresholds) -> Iterator[Finding]:
    """All ranks wait for one that is slower in the same timer again and again. Stages of a pipeline differ anyway."""
    step_seconds = state.median_step_seconds()
    if record["note"] != "timers" or not step_seconds or state.rank_waits is None:
        return
    in_a_row = int(thresholds.of("rank-wait", "in_a_row"))
    for timer, reports in state.rank_waits.reports.items():
        recent = reports[-in_a_row:]
        ranks = {rank for _, _, rank in recent}
        is_stage = timer not in DATA_TIMERS and (state.arguments.get("pipeline_model_parallel_size") or 1) > 1
        if is_stage or len(recent) < in_a_row or len(ranks) > 1 or timer not in record["fields"]:
            continue
        waits = [(float(slowest or 0), float(fastest or 0)) for fastest, slowest, _ in recent]
        if all(
            slowest > thresholds.of("rank-wait", "ratio") * fastest
            and slowest - fastest > thresholds.of("rank-wait", "share") * step_seconds
            for slowest, fastest in waits
        ):
            rank = next(iter(ranks))
            slow, fast = waits[-1]
            who = "a rank" if rank is None else f"rank {rank}"
            message = f"{who} needs {slow:.3g} s for {timer}, the fastest rank {fast:.3g} s, of {step_seconds:.3g} s a step"
            fields: Record = {"attempt": len(state.attempts), "step": state.attempt.last_step, "timer": timer}
            fields |= {"slow_seconds": slow, "fast_seconds": fast} | ({} if rank is None else {"rank": rank})
            yield Finding("rank-wait", "warning", state.run, f"rank-wait:{len(state.attempts)}:{timer}:{rank}", message, fields)
