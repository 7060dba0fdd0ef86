"""What happens in a training run, as JSON records: the output of `scrape` and the input of everything else.

A record holds the fields that its line had, in one set of names and base units whatever trainer printed it (seconds, bytes,
shares of 1). A field whose value is not a finite number is null, because JSON has no NaN; a field that the line lacks is absent.
Fields that are not known here pass through, so a newer trainer may add some.
"""

import math
from typing import Any

from lt_shared.contracts import recovery_notes
from lt_shared.data.sample_order import log_notes

VERSION = 1
MESSAGE_CHARACTERS = 500
MAXIMUM_COUNT = 2**53

Record = dict[str, Any]

END_REASONS = ("completed", "signal", "duration", "iterations", "failed")
CAUSES = ("root", "cascade", "unknown")
SEVERITIES = ("critical", "warning", "info")
FAULTS = (
    "out-of-memory",
    "host-out-of-memory",
    "shared-memory",
    "nccl-timeout",
    "nccl-error",
    "collective-mismatch",
    "rendezvous",
    "network",
    "network-device",
    "cuda-error",
    "ecc",
    "neuron-error",
    "xid",
    "sxid",
    "nan",
    "loss-spike",
    "disk-full",
    "hung-task",
    "filesystem",
    "launch",
    "npu-error",
    "configuration",
    "killed",
    "exit",
    "traceback",
    "preemption",
    "evicted",
    "time-limit",
    "node-failure",
    "requeue",
    "cancelled",
    "hyperpod",
    "gpu-lost",
    "miscomputation",
    "unknown",
)
# What ends a job whatever its severity: a job that was cancelled does not hang.
ENDINGS = frozenset({"preemption", "time-limit", "requeue", "cancelled", "node-failure", "evicted", "killed", "exit"})
NOTES = (
    "efa",
    "socket",
    "throughput",
    "straggler",
    "timers",
    "memory",
    "allocation-retries",
    "parameters",
    "initialized",
    "training-start",
    "hyperpod",
    "mlperf",
    "wandb",
    "progress",
    log_notes.Skipped.NOTE,
    log_notes.PhaseBegins.NOTE,
    "overflow",
    "missing",
    "replaced",
    "waiting-for-data",
    recovery_notes.LocalCheckpoint.NOTE,
    recovery_notes.Recovery.NOTE,
    recovery_notes.Started.NOTE,
    recovery_notes.Starting.NOTE,
    recovery_notes.Nodes.NOTE,
)

_REQUIRED: dict[str, tuple[str, ...]] = {
    "step": ("step",),
    "eval": ("step", "loss"),
    "checkpoint": (),
    "load": (),
    "preprocess": ("documents",),
    "start": ("arguments",),
    "end": ("reason",),
    "fault": ("fault", "cause", "severity", "message"),
    "note": ("note", "message"),
    "gpu": ("node",),
    "neuron": ("node",),
    "job": ("job", "state"),
}
COUNTS = frozenset(
    {
        "step",
        "total_steps",
        "epoch",
        "consumed_samples",
        "global_batch_size",
        "skipped_steps",
        "nan_steps",
        "skipped_samples",
        "documents",
        "rank",
        "task",
        "first_step",
        "core",
        "device",
        "restarts",
        "xid",
    }
)
NUMBERS = frozenset(
    {
        "loss",
        "grad_norm",
        "params_norm",
        "zeros",
        "learning_rate",
        "loss_scale",
        "step_seconds",
        "seconds",
        "waited_seconds",
        "tokens_per_second",
        "tokens_per_second_per_gpu",
        "samples_per_second",
        "tflops_per_gpu",
        "energy_joules",
        "power_watts",
        "mfu",
        "memory_bytes",
        "reserved_memory_bytes",
        "documents_per_second",
        "megabytes_per_second",
        "utilization",
        "memory_total_bytes",
        "temperature_celsius",
        "sm_clock_hertz",
        "ecc_uncorrected_errors",
    }
)
TEXTS = frozenset(
    {"run", "path", "split", "set", "time", "node", "reason", "fault", "cause", "severity", "message", "note", "state", "uuid"}
)
_FLAGS = frozenset({"asynchronous", "begun"})


def ends_job(fault: Record) -> bool:
    """Whether a fault explains why there are no steps after it."""
    return fault["severity"] == "critical" or fault["fault"] in ENDINGS


def problem(record: object) -> str | None:
    """Why `record`, read from a file, is not an event of this version; None when it is one. Makes numbers finite in place."""
    if not isinstance(record, dict) or record.get("v") != VERSION:
        return f"not a record of version {VERSION}"
    kind = record.get("kind")
    if not isinstance(kind, str) or kind not in _REQUIRED:
        return f"kind {kind!r} is not an event"
    required = _REQUIRED[kind]
    for field in required:
        if field not in record:
            return f"has no {field}"
    for field, value in record.items():
        if field in COUNTS:
            if (type(value) is not int or not 0 <= value <= MAXIMUM_COUNT) and (value is not None or field in required):
                return f"{field} is {value!r}"
        elif field in NUMBERS:
            if value is not None and type(value) not in (int, float):
                return f"{field} is {value!r}"
            record[field] = _finite(value)
        elif (field in TEXTS and not isinstance(value, str)) or (field in _FLAGS and not isinstance(value, bool)):
            return f"{field} is {value!r}"
    for field in ("arguments", "metrics", "fields", "errors"):
        if field in record and not isinstance(record[field], dict):
            return f"{field} is not an object"
    return None


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
