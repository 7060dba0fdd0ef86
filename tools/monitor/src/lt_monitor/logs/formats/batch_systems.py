"""Job end reports of PBS, Grid Engine, HTCondor and Slurm's seff, and the tables of kubectl.

`jobs` parses the time limits of PBS and LSF, `memory` their memory limits. The reports give no reason beyond a code or a state.
"""

from lt_monitor.events.records import Record
from lt_monitor.logs.formats import process_exits
from lt_monitor.logs.line_parsers import fault, regex
from lt_monitor.logs.lines import Line

KEYWORDS = (
    (b"limit exceeded", b"job killed: ncpus", b"clock limit", b"walltime limit", b"run time limit", b"runtime limit"),
    (b"deleted at request of", b"its node has died"),
    (b"Exit Status", b"Exit_status", b"exit_status", b"enforced h_rt", b"its walltime limit", b"died through signal"),
    (
        b"termination (signal",
        b"termination (return",
        b"Job was evicted",
        b"via condor_rm",
        b" (exit code ",
        b"requested job term",
    ),
    (b"  Error  ", b"nit:Error", b"CrashLoopBackOff", b"ImagePullBackOff", b"ErrImagePull", b"InvalidImageName"),
    (b"CreateContainer", b"RunContainerError", b"StartError", b"DeadlineExceeded", b"ContainerStatusUnknown", b"NodeLost"),
    (b"PyTorchJob ", b"jobset failed", b"Back-off restarting", b"longer than specified deadline", b"Failed to pull image"),
    (
        b"timeout: sending signal",
        b"Exit Code: ",
        b"exitCode: ",
        b'"exitCode": ',
        b"Requeued SLURM job",
        b"auto-requeue signal",
        b"been marked dead",
    ),
)

_EXIT_STATUS = regex(
    rb"^\s{0,12}(?:Exit[ _][Ss]tatus ?[:=]|Exit Status {1,12}=|exit_status {2}) {0,16}(?P<code>\d{1,3})\b"
    rb"(?: \(Linux Signal (?P<linux>\d{1,2})\b)?"
)
# Torque and PBS report signal N as exit status 256 + N.
_PBS_SIGNAL = 256
_TIME_LIMIT = regex(
    rb"\bfailed {1,9}37 {1,4}: qmaster enforced h_rt|Job exceeded its walltime limit"
    rb"|Job was active longer than specified deadline"
    # Moab's, and those of schedulers with like words.
    rb"|\b[Jj]ob(?: \S{1,80})? (?:has |was )?(?:exceed\w{0,3}|reach\w{0,3}|over|hit) [^\r\n]{0,40}?"
    rb"\b(?:wall[- ]?(?:clock(?: time)?|time)|run[- ]?time|cpu[- ]?time|cput|time)[ -]limit"
    rb"|^timeout: sending signal |^(?:\S{1,300}: line \d{1,9}: {1,9}\d{1,12} )?CPU time limit exceeded\b"
)
_SIGNAL = regex(
    rb"\bjob \d{1,12}\.\d{1,9} died through signal \w{1,12} \((?P<sge>\d{1,2})\)"
    rb"|\(0\) Abnormal termination \(signal (?P<condor>\d{1,2})\)"
)
_RETURNED = regex(rb"\(1\) Normal termination \(return value (?P<code>\d{1,3})\)")
_OVER_LIMIT = regex(
    rb"PBS: job killed: ncpus [\d.]{1,20} exceeded limit|^(?:\S{1,300}: line \d{1,9}: {1,9}\d{1,12} )?File size limit exceeded\b"
)
_SISTER = regex(rb"PBS: job killed: node \d{1,6} \((?P<node>[\w.-]{1,253})\) requested job terminate")
_CONDOR = regex(rb"^\d{3} \([\d.]{1,60}\) .{8,30} Job was evicted\.")
_REMOVED = regex(rb"\bvia condor_rm\b")
# Of Torque and PBS, whoever asked: Moab asks for it at the time limit.
_DELETED = regex(rb"\bJob deleted at request of \S")
_SEFF = regex(rb"^State: (?P<state>[A-Z_]{4,20}) \(exit code (?P<code>\d{1,3})\)")
_STATES = {
    b"OUT_OF_MEMORY": ("host-out-of-memory", "root", "critical"),
    b"TIMEOUT": ("time-limit", "root", "warning"),
    b"NODE_FAIL": ("node-failure", "root", "critical"),
    b"PREEMPTED": ("preemption", "root", "warning"),
    b"CANCELLED": ("cancelled", "root", "info"),
}
_STATUSES = {
    **dict.fromkeys((b"Error", b"CrashLoopBackOff", b"RunContainerError", b"StartError"), ("exit", "cascade")),
    **dict.fromkeys(
        (b"ImagePullBackOff", b"ErrImagePull", b"InvalidImageName", b"CreateContainerConfigError", b"CreateContainerError"),
        ("configuration", "unknown"),
    ),
    b"DeadlineExceeded": ("time-limit", "root"),
    **dict.fromkeys((b"ContainerStatusUnknown", b"NodeLost"), ("evicted", "root")),
}
# `Error` comes first, so that `removeprefix` below removes it: a container with the reason `Error` has an exit code on the next
# line, which says more.
_STATUS = b"|".join(_STATUSES)
_POD = regex(
    rb"^(?:[\w.-]{1,253} {1,60}){1,2}\d{1,3}/\d{1,3} {1,9}(?:Init:)?(?P<row>" + _STATUS + rb") {1,40}\d"
    rb"|^\s{2,12}Reason: {1,12}(?P<reason>" + _STATUS.removeprefix(b"Error|") + rb")\s{0,9}$"
)
_CONTAINER = regex(rb"^\s{2,12}Exit Code: {1,12}(?P<described>\d{1,3})\s{0,9}$|\bexitCode\"?: ?(?P<json>\d{1,3})\b")
_EVENT = regex(
    rb"(?P<ended>PyTorchJob \S{1,300} is failed because |jobset failed due to|Back-off restarting failed container)"
    rb"|Failed to pull image \"|Error: (?:ImagePullBackOff|ErrImagePull|InvalidImageName|CreateContainerConfigError)\s{0,9}$"
)
_REQUEUED = regex(rb"Requeued SLURM job\b|handling auto-requeue signal\b")
# Ray has lost a node.
_DEAD = regex(
    rb"The node with node id: \S{1,80} and (?:address|ip): (?P<node>[\w.:-]{1,253}) .{0,300}?has been marked dead"
    rb"|The actor is dead because its node has died"
)


def ending(line: Line) -> Record | None:
    """Parse the end of a job or of a pod's container."""
    text, body = line.text, line.text[line.body :]
    if (match := _EXIT_STATUS.match(body)) is not None:
        code = int(match["code"])
        if match["linux"] or code > _PBS_SIGNAL:
            return process_exits.killed(line, int(match["linux"] or code - _PBS_SIGNAL))
        return process_exits.ended(line, code) if code else None
    if (match := _SEFF.match(body)) is not None:
        if (state_fault := _STATES.get(match["state"])) is not None:
            return fault(line, *state_fault)
        return process_exits.ended(line, int(match["code"])) if match["state"] == b"FAILED" else None
    if (match := _CONTAINER.search(body)) is not None:
        code = int(match["described"] or match["json"])
        return process_exits.ended(line, code) if code else None
    if _TIME_LIMIT.search(text) is not None:
        return fault(line, "time-limit", "root", "warning")
    if _OVER_LIMIT.search(text) is not None:
        return fault(line, "configuration", "unknown", "critical")
    if (match := _SIGNAL.search(text)) is not None:
        return process_exits.killed(line, int(match["sge"] or match["condor"]))
    if (match := _RETURNED.search(text)) is not None:
        return process_exits.ended(line, int(match["code"])) if int(match["code"]) else None
    if _CONDOR.match(body) is not None:
        return fault(line, "preemption", "root", "warning")
    if _REMOVED.search(text) is not None:
        return fault(line, "cancelled", "root", "info")
    if _DELETED.search(text) is not None:
        return fault(line, "cancelled", "cascade", "info")
    return _of_node(line) or _of_pod(line)


def _of_node(line: Line) -> Record | None:
    match = _SISTER.search(line.text) or _DEAD.search(line.text)
    if match is not None:
        record = fault(line, "node-failure", "root", "critical", match.start() if match["node"] else None)
        # Ray's label names the node of the process that reports, not the node that died.
        return record | {"node": match["node"].decode() if match["node"] else None}
    # Lightning has asked Slurm to start the job again.
    return fault(line, "requeue", "root", "info") if _REQUEUED.search(line.text) is not None else None


def _of_pod(line: Line) -> Record | None:
    """Parse an event of Kubernetes, a row of `kubectl get pods`, or the state of a container in `kubectl describe`."""
    if (event := _EVENT.search(line.text)) is not None:
        name, cause = ("exit", "cascade") if event["ended"] else ("configuration", "unknown")
        return fault(line, name, cause, "critical")
    match = _POD.match(line.text, line.body) or _POD.match(line.text)
    if match is None:
        return None
    name, cause = _STATUSES[match["row"] or match["reason"]]
    return fault(line, name, cause, "critical")
