"""Job events of Slurm, Kubernetes and HyperPod: preempted, out of time, cancelled, exited, resumed.

PBS, LSF, Grid Engine and HTCondor are in `batch_systems`.
"""

from lt_monitor.events.records import Record
from lt_monitor.logs.line_parsers import fault, is_warning, note, regex
from lt_monitor.logs.lines import Line

_CANCELLED = regex(
    rb"\*\*\* (?P<what>JOB|STEP) (?P<job>[\d._+]{1,40})(?: ON (?P<node>\S{1,255}))? CANCELLED"
    rb"(?: AT (?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d))?"
    rb"(?: (?:DUE TO|due to|TO) (?:JOB )?(?P<reason>PREEMPTION|TIME LIMIT|NODE FAILURE|REQUEUE|\w{1,40})[^*]{0,80}"
    rb"| by [^*]{1,80})? ?\*\*\*"
)
_REASONS = {
    b"PREEMPTION": ("preemption", "root", "warning"),
    b"TIME LIMIT": ("time-limit", "root", "warning"),
    b"NODE FAILURE": ("node-failure", "root", "critical"),
    b"REQUEUE": ("requeue", "root", "info"),
}
_NODE_FAILURE = regex(
    rb"(?:srun|salloc|sbatch): (?:error: )?Node failure on (?P<node>\S{1,255})"
    rb"|(?:job_id|JobId)=\S{1,40} on failed node (?P<failed>\S{1,255})|\bNODE_FAIL\b|DUE TO NODE FAILURE"
    rb"|job preempted \(node failure\)"
    rb"|error: Nodes (?P<silent>\S{1,255}) not responding, setting DOWN"
)
_NODE_LIST = regex(rb"(?:NodeList|BatchHost|FailedNode)=(?P<node>[A-Za-z][\w.-]{0,252})\b(?!\[|,)")
_TASKS = regex(rb"srun: error: (?P<node>\S{1,255}): tasks? (?P<tasks>[\d,-]{1,200}): (?P<how>[A-Z].{1,100})")
_EXIT_CODE = regex(rb"Exited with exit code (?P<code>\d{1,5})")
_SIGNALS = {b"Killed": 9, b"Terminated": 15, b"Segmentation fault": 11, b"Aborted": 6, b"Bus error": 7, b"Interrupt": 2}
_SIGNALS |= {b"User defined signal 1": 10, b"User defined signal 2": 12, b"Hangup": 1, b"Illegal instruction": 4}
_SIGNALS |= {b"Floating point exception": 8, b"Quit": 3, b"Trace/breakpoint trap": 5, b"CPU time limit exceeded": 24}
_SIGNALS |= {b"Broken pipe": 13, b"Alarm clock": 14, b"Bad system call": 31, b"File size limit exceeded": 25}
_ABORTED = regex(
    rb"srun: Job step aborted: Waiting up to \d{1,9} seconds|srun: (?:Force T|t)erminat\w{1,5} (?:JobId|StepId|job step)"
)
# Time limits of PBS and LSF. `memory` parses their memory limits.
_LIMIT = regex(rb"PBS: job killed: (?:walltime|cput)|TERM_(?:RUN|CPU)LIMIT|job killed after reaching LSF (?:run time|CPU) limit")
_ENDED_BY = regex(rb"TERM_(?:(?P<preempt>PREEMPT)|(?:FORCE_)?(?:OWNER|ADMIN): job killed by )")
_POD_EXIT = regex(rb"(?:Exit Code: {1,8}|exitCode\"?: ?|exit code |exited with code |ExitCode: ?)(?P<code>137|143)\b")
_EVICTED = regex(
    rb"(?:Reason|reason|Status|STATUS)\"?[:=]? {0,12}\"?Evicted\b|The node was low on resource: |TaintManagerEviction"
    rb"|\bEvicted {1,8}(?:pod|Pod|\d)"
    rb"|[Pp]od .{1,120} (?:was|has been) evicted|\bPreempted by |DisruptionTarget"
    rb"|^\s{0,12}Message: {1,12}Pod was rejected: "
)
# The reason of a pod's end, condition or event, only in the position of a reason.
_REASON = regex(
    rb"(?:^\s{0,40}|[Rr]eason\"?[:=] {0,12}\"?|^\s{0,12}(?:Warning|Normal) {1,12})(?:(?P<preempted>Preempting"
    rb"|PreemptionByScheduler|Preempted in order to admit critical pod)"
    rb"|TerminationByKubelet|DeletionByTaintManager|EvictionByEvictionAPI|DeletionByPodGC)"
    rb"(?=[\s:\",}]|$)"
    rb"|^\s{0,12}(?:[Mm]essage|MESSAGE)\"?[:=] {0,12}\"?Preempted in order to admit (?P<critical>critical pod)"
)
_AUTO_RESUME = regex(
    rb"\[Auto Resume\] (?P<level>\w{1,10}): JobID: (?P<job>\d{1,12}) StepID: (?P<step_id>\d{1,12}) (?P<text>.{1,500})"
)
_ACTION = regex(rb"ResumeAction=(?P<action>\w{1,40})")
_ATTEMPT = regex(rb"Attempt number: (?P<attempt>\d{1,9})")
_FAILURE = regex(rb"Job failed|unhealthy nodes|Failed|Error")


def cancellation(line: Line) -> Record | None:
    match = _CANCELLED.search(line.text)
    if match is None:
        return None
    reason = match["reason"].upper() if match["reason"] else b""
    # Slurm cancels the steps of a job after a task failed, so a cancelled step without a reason is a consequence.
    other = ("cancelled", "cascade" if match["what"] == b"STEP" else "root", "info")
    name, cause, severity = _REASONS.get(reason, other)
    # slurmstepd reports a failed node from the job's first working node, so the printed node is not the failed one.
    node = None if name == "node-failure" else _text(match["node"])
    record = fault(line, name, cause, severity, match.start(), job=match["job"].decode(), node=node)
    return {**record, "time": match["time"].decode()} if match["time"] else record


def tasks(line: Line) -> Record | None:
    """Parse srun's report of how its tasks ended.

    srun prints exit codes and signals after the line with the reason, so they are never the root cause. `Out Of Memory` is.
    """
    text = line.text
    if (match := _TASKS.search(text)) is not None:
        node, numbers, how = _text(match["node"]), match["tasks"].decode(), match["how"]
        if how.startswith((b"Out Of Memory", b"Out of memory")):
            return fault(line, "host-out-of-memory", "root", "critical", match.start(), node=node, tasks=numbers)
        code = _EXIT_CODE.search(how)
        exit_code = int(code["code"]) if code else None
        number = next((value for word, value in _SIGNALS.items() if how.startswith(word)), None)
        # A shell exits with 128 + N if signal N ended its program.
        number = exit_code - 128 if exit_code is not None and 128 < exit_code < 160 else number
        if number is not None:
            return fault(line, "killed", "cascade", "critical", match.start(), node=node, tasks=numbers, signal=number)
        return fault(line, "exit", "cascade", "critical", match.start(), node=node, tasks=numbers, exit_code=exit_code)
    if (match := _ABORTED.search(text)) is not None:
        return fault(line, "exit", "cascade", "info", match.start())
    return None


def node_failure(line: Line) -> Record | None:
    """Parse a node failure that srun, slurmctld or sacct reports."""
    match = _NODE_FAILURE.search(line.text)
    if match is None or is_warning(line, match.start()):
        return None
    listed = _NODE_LIST.search(line.text)
    name = match["node"] or match["failed"] or match["silent"] or (listed["node"] if listed else None)
    return fault(line, "node-failure", "root", "critical", match.start(), node=_text(name))


def limit(line: Line) -> Record | None:
    """Parse the time limits of PBS and LSF, and LSF's report of who ended a job."""
    if (match := _ENDED_BY.search(line.text)) is not None:
        return fault(line, *(_REASONS[b"PREEMPTION"] if match["preempt"] else ("cancelled", "root", "info")))
    return fault(line, "time-limit", "root", "warning") if _LIMIT.search(line.text) is not None else None


def pod(line: Line) -> Record | None:
    """Parse Kubernetes' report of a pod: evicted, or ended by SIGKILL (exit code 137) or SIGTERM (143)."""
    text = line.text
    if (match := _POD_EXIT.search(text)) is not None:
        number = int(match["code"]) - 128
        return fault(line, "killed", "cascade" if number == 15 else "unknown", "critical", signal=number)
    if (reason := _REASON.search(text[line.body :])) is not None:
        is_preempted = reason["preempted"] is not None or reason["critical"] is not None
        return fault(line, "preemption" if is_preempted else "evicted", "root", "warning" if is_preempted else "critical")
    if _EVICTED.search(text) is not None:
        return fault(line, "evicted", "root", "critical")
    return None


def hyperpod(line: Line) -> Record | None:
    """Parse a line of HyperPod's auto-resume: a fault if it reports a failure or acts on one, otherwise a note."""
    match = _AUTO_RESUME.search(line.text)
    if match is None:
        return None
    action, attempt = _ACTION.search(match["text"]), _ATTEMPT.search(match["text"])
    fields = {
        "job": match["job"].decode(),
        "action": action["action"].decode() if action else None,
        "attempt": int(attempt["attempt"]) if attempt else None,
    }
    if action is not None or _FAILURE.search(match["text"]) is not None:
        return fault(line, "hyperpod", "cascade", "warning", match.start(), **fields)
    return note(line, "hyperpod", {name: value for name, value in fields.items() if value is not None}, match.start())


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode(errors="replace")
