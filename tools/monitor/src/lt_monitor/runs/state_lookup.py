"""Find the state of the run that a record belongs to."""

import re

from lt_monitor.events.records import Record
from lt_monitor.runs.run_state import RunState, forget_oldest

# A log that makes up names must not fill the memory: the oldest runs are forgotten.
MAXIMUM_RUNS = 10_000


def state_of(runs: dict[str, RunState], name: str) -> RunState:
    """The state of the run `name` among `runs`; a new one when it is not there yet."""
    if name not in runs:
        runs[name] = RunState(name)
        forget_oldest(runs, MAXIMUM_RUNS)
    return runs[name]


def state_for(runs: dict[str, RunState], record: Record) -> RunState:
    """The state of the run of `record`.

    A job whose log Slurm does not know belongs to the run that it had before, else to the one run whose log has its number.
    """
    if record["kind"] != "job" or "log" in record:
        return state_of(runs, record["run"])
    candidates = list(runs.values())
    same = (state for state in candidates if state.job.get("job") == record["job"])
    number = re.compile(rf"(?<![0-9]){re.escape(str(record.get('job')))}(?![0-9_])")
    named = [state for state in candidates if any(number.search(file.rsplit("/", 1)[-1]) for file in state.logs)]
    return next(same, None) or (named[0] if len(named) == 1 else state_of(runs, record["run"]))
