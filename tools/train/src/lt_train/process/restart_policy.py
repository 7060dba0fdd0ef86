"""The action after the end of lt-train, by its exit code: the one table for everything that restarts lt-train.

| policy | codes | --max-restarts | Slurm | Kubernetes |
|---|---|---|---|---|
| CONTINUE | 75 saved, busy; 76 hung, wrong | hung is started again | the job is put back into the queue | all pods start again |
| RESTART | 69, 70, 74; 128 + a signal | is started again | the step is started again within the job | all pods start again |
| NEVER | 0 and all others | ends | the job ends | the job ends |

A node starts again even if only another node knows the reason: if a rank is killed, the other ranks end with 74, because a
connection was closed. --max-restarts starts ranks on the same machine: a rank that computes wrong ends the run there with 76, so
that the next start can leave that machine out. A run that cannot work ends with another code, and `crash_loop` gives the code
78 to a run that fails three times at the same step, so that nothing is restarted forever.

mpirun starts nothing again: it ends all processes and passes on the code of the first that failed.
"""

import enum
import signal

from lt_shared.console import ExitCode


class Policy(enum.Enum):
    CONTINUE = "continue"
    RESTART = "restart"
    NEVER = "never"


CONTINUED = (ExitCode.TRY_AGAIN, ExitCode.NO_PROGRESS)
# A GPU that is gone, ranks that did not come; an error of CUDA or NCCL; a file, or the connection to a rank that was killed.
FAILED = (ExitCode.UNAVAILABLE, ExitCode.INTERNAL, ExitCode.IO)
NEVER = (ExitCode.USAGE, ExitCode.BAD_DATA, ExitCode.NO_INPUT, ExitCode.CANNOT_CREATE, ExitCode.BAD_CONFIG)
SIGNALLED = 128
# Between a rank and lt-train, which starts the ranks again: they have saved where a phase with another sequence length or another
# rotary embedding begins. Where torchrun or srun has started the ranks, it is TRY_AGAIN.
NEXT_PHASE = 79
# Signals that kill a rank, and SIGTERM, which srun sends to the other nodes.
CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM)


def policy(code: int) -> Policy:
    """Return the policy for the exit code `code`."""
    if code in CONTINUED:
        return Policy.CONTINUE
    return Policy.RESTART if code in FAILED or code > SIGNALLED else Policy.NEVER


def outside(code: int) -> int:
    """The exit code of a rank that another launcher has started."""
    return ExitCode.TRY_AGAIN if code == NEXT_PHASE else code


def starts_ranks_again(code: int) -> bool:
    """Whether --max-restarts does; not after a signal that has asked the run to save and end."""
    return code == ExitCode.NO_PROGRESS or policy(code) is Policy.RESTART
