"""Tell the jobs of one launcher apart, so that two jobs on one machine do not take the same port.

MPICH's Hydra sets no variable that differs between two jobs. But one process of Hydra starts all ranks of a job on a machine.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from lt_train.process.launchers.variables import Variables

# Names in /proc/PID/comm of the processes that start the ranks of one job on a machine: Hydra's, and MVAPICH's mpirun_rsh's.
STARTERS = ("hydra_pmi_proxy", "mpispawn")


def job_on_host(environment: Mapping[str, str], variables: Variables) -> str:
    """Name this process's job by the numbers of the job and of the process that started its ranks; empty if none is known."""
    numbers = [f"{name}={environment[name]}" for name in variables.job if environment.get(name)]
    return " ".join([*numbers, *_starters()])


def job_on_all_hosts(environment: Mapping[str, str], variables: Variables) -> str:
    """Name this process's job by the variables that are the same on all hosts of a job; empty if none is set."""
    return next((environment[name] for name in variables.job_of_hosts if environment.get(name)), "")


def _starters() -> list[str]:
    """Find the process id of the nearest ancestor that starts ranks. A container may hide it."""
    process = os.getppid()
    while process > 1:
        try:
            text = Path(f"/proc/{process}/stat").read_text()
        except OSError:
            return []
        # The name is in parentheses and may have spaces and parentheses; the parent is the second field behind it.
        name, _, fields = text.partition("(")[2].rpartition(")")
        if name in STARTERS:
            return [str(process)]
        process = int(fields.split()[1])
    return []
