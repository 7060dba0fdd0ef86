"""The numbers that the alert rules go by, and how a file changes them.

A rules file is TOML with a table for each rule that is to be different:

    [hang]
    minimum_seconds = 900

    [traceback]
    enabled = false

    [xid]
    severity = "warning"
"""

import os
import tomllib
from typing import Any

from lt_monitor.events.escaping import printable
from lt_monitor.events.records import FAULTS, SEVERITIES
from lt_monitor.runs import silence
from lt_shared.console import BadConfig, NoInput
from lt_shared.files import storage

DEFAULT = "default"
MAXIMUM_BYTES = 1 << 20

# 600 s is NCCL's own time-out: an alert has to come before it ends the job.
DEFAULTS: dict[str, dict[str, float]] = {
    **{fault: {} for fault in (*FAULTS, "other")},
    "hang": {
        "minimum_seconds": silence.MINIMUM_SECONDS,
        "step_factor": silence.STEP_FACTOR,
        "startup_seconds": 1800,
        "checkpoint_seconds": 1800,
        "maximum_seconds": 7 * 86400,
    },
    "nan": {"lines_without_loss": 3},
    "loss-spike": {"score": 6, "minimum_rise": 0.05, "maximum_factor": 10, "points": 20, "quiet_lines": 100},
    "divergence": {"minimum_rise": 0.2, "minimum_steps": 1000, "score": 6},
    "repeated-failure": {},
    "rank-wait": {"share": 0.2, "ratio": 1.5, "in_a_row": 5},
    "skipped-steps": {"in_a_row": 5, "warm_up_lines": 20},
    "straggling": {"ratio": 1.2, "lines": 50, "clock_ratio": 0.8},
    "throughput-drop": {"ratio": 0.8},
    "checkpoint-stale": {"intervals": 2, "minimum_seconds": 600},
    "checkpoint-missing": {},
    "job-failed": {},
    "gpu-lost": {},
    "gpu-errors": {},
    "gpu-slowdown": {},
    "neuron-errors": {},
    "no-efa": {},
    "waiting-for-data": {},
    "blind": {},
}
COMMON = ("enabled", "severity")
_EXAMPLE = "a table for each rule that differs, e.g. two lines: [hang] and minimum_seconds = 900"


class Thresholds:
    """The thresholds of every rule, which rules are off, and the severities that a file sets."""

    def __init__(self, changes: dict[str, dict[str, Any]]):
        self.values = {rule: {**defaults, **changes.get(rule, {})} for rule, defaults in DEFAULTS.items()}

    def of(self, rule: str, name: str) -> float:
        return float(self.values[rule][name])

    def is_enabled(self, rule: str) -> bool:
        return bool(self.values.get(rule, {}).get("enabled", True))

    def severity(self, rule: str, default: str) -> str:
        return str(self.values.get(rule, {}).get("severity", default))


def read(name: str) -> Thresholds:
    """Read the thresholds of a rules file, or the built-in thresholds for `default`.

    Raises NoInput if the file is missing, BadConfig for an unknown rule, an unknown threshold, or a value out of range.
    """
    if name == DEFAULT:
        return Thresholds({})
    try:
        text = _content(name)
    except NoInput as error:
        raise NoInput(str(error), f"leave --rules out, or use --rules {DEFAULT}, for the built-in ones") from None
    try:
        changes = tomllib.loads(text.decode())
    except RecursionError:
        raise BadConfig(f"{name}: nested too deeply", _EXAMPLE) from None
    except ValueError as error:
        # Also for digits that are too many for a number.
        raise BadConfig(f"{name}: not TOML: {printable(error)}", _EXAMPLE) from None
    for rule, table in changes.items():
        if rule not in DEFAULTS or not isinstance(table, dict):
            raise BadConfig(f"{name}: {printable(repr(rule), 60)} is not a rule", f"rules are {', '.join(DEFAULTS)}")
        for key, value in table.items():
            problem = _problem(rule, key, value)
            if problem:
                raise BadConfig(f"{name}: [{rule}] {printable(key, 60)} {problem}", _remedy(rule))
    return Thresholds(changes)


def _content(name: str) -> bytes:
    """Read a rules file up to a limit, because a device or a pipe may be endless."""
    if not storage.is_remote(name) and os.path.exists(name) and not os.path.isfile(name):
        raise BadConfig(f"{name}: is not a regular file", _EXAMPLE)
    with storage.open_read(name) as file:
        content = file.read(MAXIMUM_BYTES + 1)
    if len(content) > MAXIMUM_BYTES:
        raise BadConfig(f"{name}: longer than {MAXIMUM_BYTES} bytes", _EXAMPLE)
    return content


def _remedy(rule: str) -> str:
    may_have = [*(f"{key} = {value:g}" for key, value in DEFAULTS[rule].items()), "enabled = true", 'severity = "warning"']
    return f"[{rule}] may have {', '.join(may_have)}"


def _problem(rule: str, key: str, value: object) -> str | None:
    if key == "enabled":
        return None if isinstance(value, bool) else "is not true or false"
    if key == "severity":
        return None if value in SEVERITIES else f"is none of {', '.join(SEVERITIES)}"
    if key not in DEFAULTS[rule]:
        return f"is not a threshold; there are {', '.join([*DEFAULTS[rule], *COMMON])}"
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return None if is_number and 0 < value < 1e9 else "is not a number above 0 and below 1e9"  # type: ignore[operator]
