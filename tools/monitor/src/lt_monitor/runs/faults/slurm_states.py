"""What Slurm says about the job of the logs: records of `lt-monitor slurm` among the logs of `tail-cause`.

The log of a job that Slurm ended often stops without a word, and a log that stops among its steps may belong to a job that runs.
Slurm's state decides both. A root cause in the log explains more than the state, so the state replaces weaker faults only.
"""

import os
from collections.abc import Sequence

from lt_monitor.events.records import Record
from lt_monitor.logs.log_tail import LogTail

# The faults of states with which Slurm ends a job. FAILED says only that the job has ended.
FAULTS = {
    "TIMEOUT": "time-limit",
    "DEADLINE": "time-limit",
    "PREEMPTED": "preemption",
    "NODE_FAIL": "node-failure",
    "BOOT_FAIL": "node-failure",
    "OUT_OF_MEMORY": "host-out-of-memory",
    "CANCELLED": "cancelled",
}
_ENDED = frozenset({*FAULTS, "COMPLETED", "FAILED"})
# Faults that a job leaves in its log when Slurm ends it, or that are no reason.
_WEAK = frozenset({"unknown", "killed", "exit", "rendezvous", "nccl-error"})


def split(tails: Sequence[LogTail]) -> tuple[list[LogTail], Record | None]:
    """Return the logs without the files of job records, and the record of the job that wrote the logs; None without one."""
    jobs = [record for tail in tails for record in tail.records if record["kind"] == "job"]
    logs = [tail for tail in tails if not tail.records or any(record["kind"] != "job" for record in tail.records)]
    if not jobs or not logs:
        return list(tails), None
    names = {os.path.basename(tail.path) for tail in logs}
    of_logs = [job for job in jobs if os.path.basename(str(job.get("log", ""))) in names]
    if not of_logs and len({job.get("job") for job in jobs}) == 1:
        of_logs = jobs
    return logs, of_logs[-1] if of_logs else None


def is_ended(job: Record | None) -> bool:
    return job is not None and job.get("state") in _ENDED


def is_running(job: Record | None) -> bool:
    return job is not None and not is_ended(job)


def fault_of(job: Record | None, fault: str | None) -> Record | None:
    """Return the fault of the job's state if it explains more than `fault`, which the logs show; else None."""
    name = FAULTS.get(str(job.get("state"))) if job is not None else None
    if job is None or name is None or (fault is not None and fault not in _WEAK):
        return None
    reason = f", {job['reason']}" if isinstance(job.get("reason"), str) else ""
    return {
        "kind": "fault",
        "fault": name,
        "cause": "root",
        "severity": "critical",
        "message": f"{description(job)}{reason}",
        **({"node": job["nodes"]} if job.get("node_count") == 1 and isinstance(job.get("nodes"), str) else {}),
        "src": {},
    }


def description(job: Record) -> str:
    return f"Slurm's state of job {job.get('job')} is {job.get('state')}"
