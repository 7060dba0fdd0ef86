"""Job steps that Slurm could not start: what srun, sbatch, slurmstepd and munge say, and whose fault it is.

A node that refuses a step is excluded. A controller that is too busy may be asked again. If the program is missing or the
allocation is not allowed, somebody has to change the job.
"""

import re

from lt_monitor.events.records import Record
from lt_monitor.logs.line_parsers import fault, regex
from lt_monitor.logs.lines import Line

_TASK = regex(
    rb"(?:Task launch for (?:StepId=)?[\d._+a-z]{1,60} failed on node (?P<node>[\w.-]{1,253})"
    rb"|Application launch failed|srun: error: tasks? [\d,-]{1,200} launch failed): (?P<why>[^\r\n]{1,200})"
)
_REFUSED = regex(
    rb"(?:srun|sbatch|salloc): (?:error: |fatal: )?(?:Unable to (?:create step for job \d{1,12}|allocate resources"
    rb"|confirm allocation for job"
    rb" \d{1,12}|contact slurm controller)|Batch job submission failed|Job submit/allocate failed|Failed to allocate resources"
    rb"|Job allocation \d{1,12} has been revoked)(?:: (?P<why>[^\r\n]{1,200}))?"
)
_RECEIVED = regex(rb"slurm_receive_msgs?: \[\[?(?P<node>[\w.-]{1,253})\][^\r\n]{0,60}failed: (?P<why>[^\r\n]{1,200})")
_ENDED = regex(rb"already completing or completed")
_RETRIES = regex(rb"temporarily disabled, retrying|Requested nodes are busy|retrying|Resource busy")
_EXECUTES = regex(
    rb"(?:slurmstepd|srun|slurmd)[^:]{0,60}: (?:error: |fatal: )?(?:\[[^\]]{1,60}\] )?(?:task \d{1,6} )?(?:execve\(\)"
    rb"|Can not execute|Unable to exec)"
    rb"[: ]{1,2}(?P<program>[^\r\n:]{1,300})"
)
_PROLOG = regex(
    rb"(?:slurmstepd|slurmd|slurmctld|srun)[^:]{0,60}: error: .{0,120}?(?:[Pp]rolog (?:failed|hung|error|returned)"
    rb"|TaskProlog failed"
    rb"|prolog_complete failed)|[Tt]ask[_ ]?[Pp]rolog .{0,80}failed|Reason=(?:Prolog error|launch[_ ]failed)|JobLaunchFailure"
    rb"|Could not launch job \d|batch job complete failure|launch failed requeued held"
)
_MUNGE = regex(
    rb"Munge (?:encode|decode) failed: |[Pp]rotocol authentication error|(?:auth|cred)[/_]munge: .{0,100}(?:Munge|Expired"
    rb"|Invalid|Rewound)"
    rb"|Munge cryptographic signature error|Zero Bytes were transmitted or received"
)
_MPI = regex(
    rb"(?:ORTE|PRTE|PRRTE) (?:has lost communication with a remote daemon|was unable to reliably start one or more daemons"
    rb"|daemon has unexpectedly failed)|An ORTE daemon has unexpectedly failed after launch"
)
_CONTAINER = regex(
    rb"^slurmstepd[^\s:]{0,253}: error: pyxis: (?:failed to (?:import docker image|create container)|container start failed"
    rb"|couldn't start container)"
)
_FORK = regex(rb"^\S{1,300}: fork: Resource temporarily unavailable\s{0,9}$")
# The controller, or the network to it, is too busy.
_BUSY = regex(
    rb"[Ss]ocket timed out|Unable to contact|[Cc]onnection refused|[Cc]onnection timed out|[Cc]ommunication connection failure"
    rb"|Slurm backup controller|[Rr]equested nodes are busy|Message send failure|Message receive failure|Slurm temporarily unable"
    rb"|Timed out|Resource temporarily unavailable|Transport endpoint|Error generating job credential|Node is not responding"
    rb"|Job/step already completing"
)
# Of a node whose daemon takes no connection.
_UNREACHED = regex(rb"[Cc]ommunication connection failure|[Cc]onnection refused|No route to host|Node is not responding")
# What only the job's owner can change.
_JOB = regex(
    rb"Invalid (?:account|partition|qos|QOS|job array|feature|generic resource|node name|user|license|time|wckey|numeric)"
    rb"|[Nn]ode configuration is not available|[Mm]ore processors requested|[Mm]emory required by task"
    rb"|violates accounting|not permitted"
    rb"|Node count specification|Requested (?:time|partition configuration)|[Ii]nvalid job id|[Aa]ccess/permission denied"
    rb"|could not execve|No such file|[Pp]ermission denied|Exec format error|chdir|[Pp]artition .{0,60}(?:down|not)"
    rb"|[Ii]nvalid cpu|[Uu]nable to resolve"
)


def task(line: Line) -> Record | None:
    """A step, or an allocation, that was not to be had."""
    text = line.text
    if (match := _TASK.search(text)) is not None:
        node = match["node"].decode() if match["node"] else None
        if node is not None and _UNREACHED.search(match["why"]) is not None:
            return fault(line, "launch", "root", "critical", match.start(), node=node, action="isolate")
        return _launch(line, match, match["why"], "isolate", "root" if node else "unknown", node)
    if (match := _RECEIVED.search(text)) is not None:
        return _launch(line, match, match["why"], "again", "unknown", match["node"].decode())
    if (match := _REFUSED.search(text)) is not None and _ENDED.search(text) is not None:
        return fault(line, "exit", "cascade", "critical", match.start())
    if match is None or _RETRIES.search(text) is not None:
        return None
    return _launch(line, match, match["why"] or text, "again", "root", None)


def _launch(line: Line, match: re.Match[bytes], why: bytes, otherwise: str, cause: str, node: str | None) -> Record:
    action = "stop" if _JOB.search(why) is not None else "again" if _BUSY.search(why) is not None else otherwise
    return fault(line, "launch", cause, "critical", match.start(), node=node, action=action)


def program(line: Line) -> Record | None:
    """A program that is not on the node. The batch script itself is put there by Slurm, not by the job."""
    match = _EXECUTES.search(line.text)
    if match is None:
        return None
    is_script = match["program"].rstrip().endswith(b"/slurm_script")
    return fault(line, "launch", "root", "critical", match.start(), action="again" if is_script else "stop")


def container(line: Line) -> Record | None:
    """Parse a failure of pyxis to fetch an image or to create its container; enroot's next lines have the reason."""
    is_refused = _CONTAINER.match(line.text[line.body :]) is not None
    return fault(line, "configuration", "unknown", "critical") if is_refused else None


def processes(line: Line) -> Record | None:
    """Parse a shell's failed forks on a node or a cgroup that has reached its limit of processes."""
    is_full = _FORK.match(line.text[line.body :]) is not None
    return fault(line, "launch", "unknown", "critical", action="processes") if is_full else None


def daemon(line: Line) -> Record | None:
    """A prolog that failed, or daemons that do not trust or do not reach each other."""
    for pattern, action in ((_PROLOG, "isolate"), (_MUNGE, "isolate"), (_MPI, "again")):
        if (match := pattern.search(line.text)) is not None:
            return fault(line, "launch", "unknown" if pattern is _MUNGE else "root", "critical", match.start(), action=action)
    return None
