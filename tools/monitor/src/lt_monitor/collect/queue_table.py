"""The table that squeue prints for people, without options or with -l.

All columns but the last are aligned to the right ends of their headings, and longer values are cut off. The last column has the
nodes of a job; for a waiting job it has the reason in brackets.
"""

import re
from collections.abc import Sequence

_HEADING = re.compile(r" *JOBID PARTITION +NAME +USER +(?:ST|STATE) .*NODELIST\(REASON\)\s*")
_NAMES = {"JOBID": "shown_id", "PARTITION": "partition", "NAME": "name", "USER": "user_name", "NODES": "node_count"}
_STATES = {
    "BF": "BOOT_FAIL", "CA": "CANCELLED", "CD": "COMPLETED", "CF": "CONFIGURING", "CG": "COMPLETING", "DL": "DEADLINE",
    "F": "FAILED", "NF": "NODE_FAIL", "OOM": "OUT_OF_MEMORY", "PD": "PENDING", "PR": "PREEMPTED", "R": "RUNNING",
    "RQ": "REQUEUED", "S": "SUSPENDED", "ST": "STOPPED", "TO": "TIMEOUT",
}  # fmt: skip


def jobs_in(lines: Sequence[str]) -> list[dict[str, str]]:
    """Return the jobs below the table's heading under scontrol's names of fields; no job if there is no heading."""
    first = next((number for number, line in enumerate(lines) if _HEADING.fullmatch(line) is not None), None)
    if first is None:
        return []
    ends = {match[0]: match.end() for match in re.finditer(r"\S+", lines[first])}
    return [_job(line, ends) for line in lines[first + 1 :] if line.strip()]


def _job(line: str, ends: dict[str, int]) -> dict[str, str]:
    values: dict[str, str] = {}
    begin = 0
    for heading, end in ends.items():
        is_last = heading == "NODELIST(REASON)"
        values[heading] = (line[begin:] if is_last else line[begin:end]).strip()
        begin = end
    job = {name: values[heading] for heading, name in _NAMES.items() if values.get(heading)}
    job["job_state"] = _state(values.get("ST") or values.get("STATE") or "")
    place = values["NODELIST(REASON)"]
    if place:
        is_reason = place.startswith("(")
        job["state_reason" if is_reason else "nodes"] = place.strip("()") if is_reason else place
    return job


def _state(shown: str) -> str:
    """Return the whole name of a state from its short one or from its first letters, because a narrow column cuts it off."""
    if shown in _STATES:
        return _STATES[shown]
    return next((state for state in _STATES.values() if len(shown) > 4 and state.startswith(shown)), shown)
