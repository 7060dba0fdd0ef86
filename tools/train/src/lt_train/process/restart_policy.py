"""Decide by lt-train's exit code whether to restart it. All that restarts lt-train uses this table.

| policy | codes | --max-restarts | Slurm | Kubernetes |
|---|---|---|---|---|
| CONTINUE | 75 saved, busy; 76 hung, wrong | hung is started again | the job is put back into the queue | all pods start again |
| RESTART | 69, 70, 74; 128 + a signal | is started again | the step is started again within the job | all pods start again |
| NEVER | 0, 141 closed stdout, and all others | ends | the job ends | the job ends |

A node starts again even if only another node knows the reason: if a rank is killed, the other ranks end with 74, because a
connection was closed. --max-restarts starts ranks on the same machine. So if a rank computes wrong, the run ends with 76, and
the next start can leave the machine out. A run that cannot work ends with another code. `crash_loop` ends a run that fails three
times at the same step with 78, so that nothing is restarted forever.

mpirun restarts nothing: it ends all processes and exits with the code of the first process that failed.
"""

import enum
import signal

from lt_shared.console import ExitCode


class Policy(enum.Enum):
    CONTINUE = "continue"
    RESTART = "restart"
    NEVER = "never"


CONTINUED = (ExitCode.TRY_AGAIN, ExitCode.NO_PROGRESS)
# A lost GPU or missing ranks; an error of CUDA or NCCL; a file, or the connection to a killed rank.
FAILED = (ExitCode.UNAVAILABLE, ExitCode.INTERNAL, ExitCode.IO)
NEVER = (ExitCode.USAGE, ExitCode.BAD_DATA, ExitCode.NO_INPUT, ExitCode.CANNOT_CREATE, ExitCode.BAD_CONFIG)
SIGNALLED = 128
# The ranks exit with this code after they have saved at the begin of a phase with another sequence length or rotary embedding,
# or before an elastic run takes another node, and lt-train starts them again. For ranks that torchrun or srun started, the code
# is TRY_AGAIN.
NEXT_PHASE = 79
# Signals that kill a rank, and SIGTERM, which srun sends to the other nodes.
CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM)


def policy(code: int) -> Policy:
    """Return the policy for the exit code `code`."""
    if code in CONTINUED:
        return Policy.CONTINUE
    if code == ExitCode.BROKEN_PIPE:
        return Policy.NEVER
    return Policy.RESTART if code in FAILED or code > SIGNALLED else Policy.NEVER


def launcher_code(code: int) -> int:
    """Convert a rank's exit code `code` to the code for a launcher other than lt-train."""
    return ExitCode.TRY_AGAIN if code == NEXT_PHASE else code


def starts_ranks_again(code: int) -> bool:
    """Whether --max-restarts starts ranks again after `code`: not if a signal has asked the run to save and end."""
    return code == ExitCode.NO_PROGRESS or policy(code) is Policy.RESTART
