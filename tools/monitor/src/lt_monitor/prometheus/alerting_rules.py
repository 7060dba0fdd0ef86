"""`lt-monitor rules`: alerting rules of Prometheus for the metrics that `lt-monitor prom` writes.

They are those rules of `lt-monitor alert` that metrics suffice for; causes (which rank, which Xid) are in the log only. A test
runs them with `promtool test rules`.
"""

import dataclasses
import json


@dataclasses.dataclass(frozen=True)
class Alert:
    """`wait` is how long the expression has to hold; `summary` is a template of Prometheus."""

    name: str
    expression: str
    severity: str
    summary: str
    wait: str = "0m"


_RUN = "{{ $labels.run }}"
ALERTS = (
    Alert(
        "LtMonitorStale",
        "time() - lt_monitor_last_run_timestamp_seconds > 900",
        "warning",
        "lt-monitor {{ $labels.monitor }} has not read the logs for {{ $value | humanizeDuration }}",
    ),
    Alert(
        "LtTrainHang",
        "(time() - lt_train_last_step_timestamp_seconds) > lt_train_hang_limit_seconds and lt_train_running == 1",
        "critical",
        f"{_RUN}: no step for {{{{ $value | humanizeDuration }}}}",
    ),
    Alert(
        "LtTrainFailed", "lt_train_failed == 1", "critical", f"{_RUN}: a critical fault, and no step since; see lt-monitor alert"
    ),
    Alert(
        "LtTrainNan",
        "increase(lt_train_nan_steps_total[15m]) > 0 or (lt_train_loss != lt_train_loss)",
        "critical",
        f"{_RUN}: the loss is not a number",
    ),
    Alert(
        "LtTrainSkippedSteps",
        "increase(lt_train_skipped_steps_total[15m]) > 5 and lt_train_step > 1000",
        "warning",
        f"{_RUN}: {{{{ $value | humanize }}}} skipped steps in 15 minutes",
    ),
    Alert(
        "LtTrainLossSpike",
        "lt_train_loss > 1.3 * quantile_over_time(0.5, lt_train_loss[2h]) and lt_train_step > 1000",
        "warning",
        f"{_RUN}: loss {{{{ $value | humanize }}}}, far above that of the last two hours",
    ),
    Alert(
        "LtTrainStraggling",
        "lt_train_step_seconds > 1.2 * lt_train_attempt_step_seconds and lt_train_running == 1",
        "warning",
        f"{_RUN}: steps take {{{{ $value | humanizeDuration }}}}, 20 % more than usual",
        "10m",
    ),
    Alert(
        "LtTrainThroughputDrop",
        "lt_train_tokens_per_second < 0.8 * max_over_time(lt_train_tokens_per_second[1d]) and lt_train_running == 1",
        "warning",
        f"{_RUN}: {{{{ $value | humanize }}}} tokens per second, 20 % below the best of the day",
        "15m",
    ),
    Alert(
        "LtTrainCheckpointStale",
        "(lt_train_last_step_timestamp_seconds - lt_train_last_checkpoint_timestamp_seconds)"
        " > 2 * lt_train_checkpoint_interval_seconds > 600 and lt_train_running == 1",
        "warning",
        f"{_RUN}: trains without a new checkpoint",
    ),
    Alert(
        "LtTrainCrashLoop",
        "increase(lt_train_restarts_total[1h]) > 3",
        "critical",
        f"{_RUN}: {{{{ $value | humanize }}}} restarts in an hour",
    ),
)


def render() -> str:
    """Format the rules file. Texts are JSON strings, which are valid YAML."""
    lines = ["groups:", "  - name: lt-train", "    rules:"]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.expression)}",
            f"        for: {alert.wait}",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
        ]
    return "\n".join(lines) + "\n"
