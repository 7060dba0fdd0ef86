"""A restart that fails as the attempt before it did: with the same cause at the same step.

Starting such a job again costs a queue, a load and the same failure. Endings by the scheduler do not count, nor does a node to
blame: without it the job may go on.
"""

import re
from collections.abc import Sequence

from lt_monitor.events.records import Record
from lt_monitor.runs.faults.advice import Action, advice
from lt_monitor.runs.faults.endings import SCHEDULER_ENDINGS, ending_faults
from lt_monitor.runs.faults.failure_causes import root_cause
from lt_monitor.runs.log_attempts import LogAttempts

MESSAGE_CHARACTERS = 80
# Of these, only the message tells two causes apart.
_GENERAL = frozenset({"traceback", "exit", "killed", "configuration", "other"})
_VARIABLE = re.compile(r"0x[0-9a-fA-F]+|\d+")


def failure_of(faults: Sequence[Record], step: int | None) -> Record | None:
    """Reduce the failure of an attempt whose last step was `step` to a record for `is_repeated`; None if it does not count."""
    cause = root_cause(faults)
    if cause is None or cause["severity"] != "critical" or cause["fault"] in SCHEDULER_ENDINGS:
        return None
    failure: Record = {"fault": cause["fault"], "step": step, "message": cause["message"], "action": advice(cause).action.value}
    return failure | {key: cause[key] for key in ("xid", "node") if key in cause}


def is_repeated(before: Record | None, now: Record | None) -> bool:
    """Whether two failures are one: the same cause at the same step. A node that both name is to blame, not the run."""
    if before is None or now is None or any(before.get(key) != now.get(key) for key in ("fault", "step", "xid")):
        return False
    if now["action"] == Action.WITHOUT_NODE.value and now.get("node") == before.get("node"):
        return False
    return now["fault"] not in _GENERAL or _masked(before["message"]) == _masked(now["message"])


def repetition(file: str, records: Sequence[Record]) -> Record | None:
    """Return the fault that ended the attempt before the last one in a log if the last one ended in the same way, else None."""
    log_attempts = LogAttempts(file)
    for record in records:
        log_attempts.take(record)
    attempts = log_attempts.attempts()
    if len(attempts) < 2:
        return None
    before, now = attempts[-2:]
    earlier_faults = ending_faults(before)
    earlier = failure_of(earlier_faults, before.last_step)
    return root_cause(earlier_faults) if is_repeated(earlier, failure_of(ending_faults(now), now.last_step)) else None


def _masked(message: str) -> str:
    """The beginning of a message without numbers: ranks, processes and times differ between two attempts."""
    return _VARIABLE.sub("#", message)[:MESSAGE_CHARACTERS]
