"""Why a job ended, from the end of its output: one fault, its nodes and ranks, and the remedy.

Several logs, one for each rank or node, are one job. Only a fault at the end counts: a fault before a step was caught, or belongs
to an earlier attempt. After the log says that training is complete, only a root fault counts, such as a full disk under
the last checkpoint, because processes complain of each other when they exit.
"""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

from lt_monitor.events.escaping import printable
from lt_monitor.events.records import MESSAGE_CHARACTERS, Record
from lt_monitor.events.steps import epoch_seconds
from lt_monitor.logs import log_files
from lt_monitor.logs.formats import xids
from lt_monitor.logs.line_parsers import BRACKETS
from lt_monitor.logs.lines import Line
from lt_monitor.logs.log_tail import LogTail
from lt_monitor.runs.faults import log_endings, silent_ends, slurm_states
from lt_monitor.runs.faults.advice import ADVICE, Action, advice
from lt_monitor.runs.faults.failure_causes import (
    MAXIMUM_NAMED,
    SCHEDULER_FAULTS,
    precedence,
    ranks_text,
    root_cause,
    suspect_ranks,
    with_mismatches,
)
from lt_monitor.runs.faults.repeated_failures import repetition
from lt_shared import credentials

# Of those that steps follow: a dying process writes its buffered step lines after its traceback.
LATE_OUTPUT_BYTES = 1 << 16
# About forty progress bars.
KILL_WAIT_BYTES = 1 << 13
SLURM_TIME_LIMIT = "DUE TO TIME LIMIT"
# Keep the log open: if it is rotated meanwhile, the open file still has its end.
MAXIMUM_OPEN_LOGS = 64
SILENCE = "the log stops without a word"
COMPLETED = "completed"
_EARLY_ENDS = ("signal", "duration")
_COMPLETED = re.compile(
    rb"'train_runtime': |[Tt]raining (?:is )?(?:completed?|finished|done)\b|[Ff]inished training|`Trainer\.fit` stopped: `max_"
    rb"|[Tt]raining has (?:finished|completed)|\*{3,9} train metrics \*{3,9}|Training run complete"
)
_THREAD = re.compile(
    rb"(?:Exception in thread |Exception ignored in|Exception in callback|Error in atexit|Process ForkPoolWorker)"
)
# Before the heading of a traceback or in the line above it; the program that said so goes on.
_WARNED = re.compile(rb"\b(?:WARNING|WARN|Warning|DEBUG)\b|\[W\d{0,4}[ \]]|(?:^|\n|\s)W\d{4} ")
_LOGGED = re.compile(rb"(?:[^\n]{0,120}?[\s:|\[(-])?(?:ERROR|Error|CRITICAL|FATAL)[\s:|\])-][^\n]*\n$")
MINIMUM_LINES_AFTER_WARNING = 5
_TRACEBACK = b"Traceback (most recent call last)"
_ELASTIC_HOST = re.compile(rb"host {1,8}: (?P<host>[A-Za-z0-9][\w.-]{0,252})\r?\n.{0,60}?rank {1,8}: (?P<rank>\d{1,7}) ")


@dataclasses.dataclass(frozen=True)
class Cause:
    """Why a job ended; `fault` is None where nothing went wrong. `line` is the number of its line, `text` the line."""

    fault: str | None
    cause: str | None
    severity: str | None
    message: str
    advice: str | None
    action: Action
    nodes: list[str]
    ranks: list[int]
    file: str | None
    offset: int | None
    line: int | None
    text: str | None
    last_step: int | None

    def to_record(self) -> dict[str, Any]:
        return {"v": 1, "kind": "cause", **dataclasses.asdict(self)}

    def sentence(self) -> str:
        """`xid: node n1: NVRM: Xid (...): 79 (slurm-78.out:1234); exclude the node ...`"""
        if self.fault is None:
            step = f", last step {self.last_step}" if self.last_step is not None else ""
            return f"{self.message}{step}"
        origin = self.nodes_and_ranks()
        shown = f"{origin}: {self.message}" if origin else self.message
        place = f" ({self.file}:{self.line})" if self.file is not None else ""
        return f"{self.fault}: {printable(shown, MESSAGE_CHARACTERS)}{place}; {self.advice}"

    def nodes_and_ranks(self) -> str:
        more = ", ..." if len(self.nodes) > MAXIMUM_NAMED else ""
        nodes = f"node {', '.join(self.nodes[:MAXIMUM_NAMED])}{more}" if self.nodes else ""
        ranks = ranks_text(self.ranks) if self.ranks else ""
        if self.fault == "nccl-timeout" and ranks:
            ranks = f"first suspect {ranks}"
        return ", ".join(filter(None, (nodes, ranks)))

    def excluded(self) -> str:
        """sbatch's option that keeps the nodes to blame out; empty where none is."""
        return f"--exclude={','.join(self.nodes)}" if self.nodes and self.action is Action.WITHOUT_NODE else ""


def tail_cause(patterns: Sequence[str], is_ended: bool = False) -> Cause:
    """Why the job whose logs these are has ended. Raises what opening a log raises.

    `is_ended`: the job has ended for certain, so a log without an end is a failure. Records of `lt-monitor slurm` among the logs
    say so as well, and why Slurm ended the job.
    """
    tails: list[LogTail] = []
    try:
        for path in log_files.expand(patterns):
            tails.append(LogTail(path))
            if len(tails) > MAXIMUM_OPEN_LOGS:
                tails[-1].release()
        problems = {tail.path: tail.problem for tail in tails if tail.problem is not None}
        log_files.require_one_text(problems, len(tails))
        readable_tails = [tail for tail in tails if tail.problem is None]
        log_tails, job = slurm_states.split(readable_tails)
        cause = _of_job(log_tails, is_ended or slurm_states.is_ended(job))
        return _stopped_if_repeated(cause if job is None else _with_state(cause, job), log_tails)
    finally:
        for tail in tails:
            tail.close()


def _with_state(cause: Cause, job: Record) -> Cause:
    """Correct the cause that the logs show by the state of the job that wrote them."""
    is_silent = cause.fault == "unknown" and cause.message.startswith(SILENCE)
    if is_silent and (slurm_states.is_running(job) or job["state"] == "COMPLETED"):
        return _nothing(f"no failure: {slurm_states.description(job)}", Action.NONE, cause.last_step)
    fault = slurm_states.fault_of(job, cause.fault) if cause.message != COMPLETED else None
    return cause if fault is None else _cause(fault, [fault], {}, cause.last_step)


def _stopped_if_repeated(cause: Cause, tails: Sequence[LogTail]) -> Cause:
    """Advise to stop if the attempt before, in the same log, ended by the same cause at the same step."""
    if cause.fault is None or cause.action not in (Action.AGAIN, Action.WITHOUT_NODE, Action.UNKNOWN):
        return cause
    for tail in tails:
        earlier = repetition(tail.shown, tail.records)
        if earlier is not None and earlier["fault"] == cause.fault:
            place = f"{tail.shown}:{tail.line_number(int(earlier['src'].get('offset', 0)))}"
            text = f"stop: the attempt before failed in the same way at the same step ({place}); {cause.advice}"
            return dataclasses.replace(cause, action=Action.STOP, advice=text)
    return cause


def _of_job(tails: Sequence[LogTail], is_ended: bool) -> Cause:
    tail_by_name = {tail.shown: tail for tail in tails}
    last_step = max((step for tail in tails if (step := _last_step(tail)) is not None), default=None)
    faults = with_mismatches(_in_order([fault for tail in tails for fault in _open_faults(tail)]))
    is_completed = any(_is_completed(tail) for tail in tails)
    if is_completed:
        faults = [fault for fault in faults if fault["cause"] == "root" and fault["severity"] == "critical"]
    while _says_failure(faults):
        chosen = root_cause(faults)
        assert chosen is not None
        if not _is_harmless(chosen, faults, tail_by_name, is_completed):
            return _cause(chosen, faults, tail_by_name, last_step)
        faults = [fault for fault in faults if fault is not chosen]
    if not is_completed and (reason := next((end for tail in tails if (end := _end(tail)) is not None), None)) is not None:
        action = Action.AGAIN if reason in _EARLY_ENDS else Action.UNKNOWN if reason == "failed" else Action.NONE
        return _nothing(f"ended early: {reason}" if action is not Action.NONE else COMPLETED, action, last_step)
    if (nan := next((fault for tail in tails if (fault := log_endings.nan(tail)) is not None), None)) is not None:
        return _cause(nan, [nan], tail_by_name, last_step)
    if (
        not is_completed
        and (last := next((fault for tail in tails if (fault := log_endings.last_error(tail)) is not None), None)) is not None
    ):
        return _cause(last, [last], tail_by_name, last_step)
    if (
        not is_completed
        and (told := next((fault for tail in tails if (fault := log_endings.telling(tail)) is not None), None)) is not None
    ):
        return _cause(told, [told], tail_by_name, last_step)
    if is_completed:
        return _nothing(COMPLETED, Action.NONE, last_step)
    silence = silent_ends.silent_end(tails, is_ended)
    if silence is not None and silence.has_ended:
        silenced = log_endings.silenced(tails, f"{SILENCE}{silence}")
        return _cause(silenced, [silenced], tail_by_name, last_step)
    return _nothing("no failure" if silence is None else f"no failure, and no end yet{silence}", Action.NONE, last_step)


def _nothing(message: str, action: Action, last_step: int | None) -> Cause:
    return Cause(None, None, None, message, None, action, [], [], None, None, None, None, last_step)


def _last_step(tail: LogTail) -> int | None:
    return next((record["step"] for record in reversed(tail.records) if record["kind"] == "step"), None)


def _end(tail: LogTail) -> str | None:
    """The reason that the trainer gave for its end, after which there are no steps."""
    for record in reversed(tail.records):
        if record["kind"] in ("end", "step", "start"):
            return str(record["reason"]) if record["kind"] == "end" else None
    return None


def _is_completed(tail: LogTail) -> bool:
    if _end(tail) in ("completed", "iterations"):
        return True
    begin = max(0, tail.size - LATE_OUTPUT_BYTES)
    completions = list(_COMPLETED.finditer(tail.text(begin, tail.size)))
    started = max((record["src"]["offset"] for record in tail.records if record["kind"] == "start"), default=-1)
    return bool(completions) and begin + completions[-1].start() > max(log_endings.recovered(tail)[1], started)


def _open_faults(tail: LogTail) -> list[Record]:
    """Return the faults at the end of a log."""
    over, _ = log_endings.recovered(tail)
    started = max((record["src"]["offset"] for record in tail.records if record["kind"] == "start"), default=-1)
    faults = [record for record in tail.records if record["kind"] == "fault"]
    open_faults = [fault for fault in faults if fault["src"]["offset"] > max(over, started)]
    # A cloud's notice comes a minute before the end, and steps go on until then.
    early = [fault for fault in faults if started < fault["src"]["offset"] <= over]
    # Slurm kills 30 s after it reports the time limit, and a trainer that ignores SIGTERM makes steps until then.
    open_faults = [fault for fault in early if fault.get("is_notice") or _is_time_limit(fault, over)] + open_faults
    open_faults += log_endings.last_word(tail, open_faults)
    if open_faults and all(precedence(fault) >= 4 for fault in open_faults):
        # The job failed, but buffered step lines come after the lines that say why.
        late = [fault for fault in faults if max(started, over - LATE_OUTPUT_BYTES) < fault["src"]["offset"] <= over]
        open_faults = [fault for fault in late if precedence(fault) <= 1] + open_faults
    return open_faults


def _is_time_limit(fault: Record, over: int) -> bool:
    is_of_slurm = fault["fault"] == "time-limit" and SLURM_TIME_LIMIT in str(fault["message"])
    return is_of_slurm and int(over - fault["src"]["offset"]) <= KILL_WAIT_BYTES


def _says_failure(faults: Sequence[Record]) -> bool:
    """Whether there is more than a warning; some Xids and signals are one for the GPU and the user, but end the process."""
    return any(
        fault["severity"] == "critical"
        or fault["fault"] in (*SCHEDULER_FAULTS, "killed")
        or (fault["fault"] == "xid" and fault.get("xid") in xids.ENDING)
        for fault in faults
    )


def _in_order(faults: list[Record]) -> list[Record]:
    """By their times where all have one: the order of the files says nothing."""
    if len({fault["src"].get("file") for fault in faults}) > 1 and all(isinstance(fault.get("time"), str) for fault in faults):
        return sorted(faults, key=lambda fault: epoch_seconds(fault["time"]))
    return faults


def _is_harmless(fault: Record, faults: Sequence[Record], tails: dict[str, LogTail], is_completed: bool) -> bool:
    """Whether it is the exception of a thread or of a destructor, which end no process, or was logged as a warning.

    A traceback that a logger printed ends no job that is complete.
    """
    tail = tails.get(str(fault["src"].get("file")))
    if tail is None or (fault["fault"] not in ("traceback", "rendezvous") and "exception" not in fault):
        return False
    offset = fault["src"]["offset"]
    before = tail.context(offset - log_endings.CONTEXT_BYTES, offset)
    traceback = before.rfind(_TRACEBACK)
    if traceback < 0:
        return False
    if _THREAD.search(before, max(0, traceback - 200), traceback) is not None:
        return True
    logged = before.rfind(b"\n", 0, max(0, before.rfind(b"\n", 0, traceback))) + 1
    if is_completed and _LOGGED.match(before, logged, traceback) is not None:
        return True
    goes_on = tail.context(offset, offset + log_endings.CONTEXT_BYTES).count(b"\n") > MINIMUM_LINES_AFTER_WARNING
    is_last = all(other["src"]["offset"] <= offset for other in faults if other["src"].get("file") == tail.shown)
    return goes_on and is_last and _WARNED.search(before, logged, traceback) is not None


def _cause(chosen: Record, faults: Sequence[Record], tails: dict[str, LogTail], last_step: int | None) -> Cause:
    alike = [fault for fault in faults if all(fault.get(key) == chosen.get(key) for key in ("fault", "cause", "xid"))]
    remedy = advice(chosen)
    tail = tails.get(str(chosen["src"].get("file")))
    offset = chosen["src"].get("offset")
    is_place = tail is not None and type(offset) is int
    line = _line(tail, offset) if tail is not None and is_place else None
    # What goes to chat rooms has no secrets.
    message = _continued(tail, _without_prefix(chosen["message"]), offset) if tail is not None and is_place else chosen["message"]
    texts = credentials.covered({"message": _without_prefix(message), "text": line})
    return Cause(
        fault=chosen["fault"] if chosen["fault"] in ADVICE else "other",
        cause=chosen["cause"],
        severity="critical" if chosen.get("is_inner_cause") else chosen["severity"],
        message=texts["message"],
        advice=remedy.text,
        action=remedy.action,
        nodes=sorted(_nodes(alike, faults, tails)),
        ranks=_ranks(alike, chosen, tails),
        file=chosen["src"].get("file"),
        offset=offset,
        line=tail.line_number(offset) if tail is not None and is_place else None,
        text=texts["text"],
        last_step=last_step,
    )


def _without_prefix(message: str) -> str:
    """The message without the time and host of the kernel's log, and without the bar of an exception group."""
    _, kernel, text = message.partition(" kernel: ")
    return (text if kernel else message).lstrip("|\u2502 ")


def _continued(tail: LogTail, message: str, offset: int) -> str:
    """Add the next line to a message that ends in a colon, because the words of a panic stand there."""
    if not message.endswith(":"):
        return message
    # The lines before show the labels of the next line.
    text = tail.context(offset - log_endings.CONTEXT_BYTES, offset + log_endings.CONTEXT_BYTES)
    begin = text.rfind(message.encode())
    if begin < 0:
        return message
    label, _, following = text[text.rfind(b"\n", 0, begin) + 1 :].partition(message.encode())
    line = Line(following.removeprefix(b"\n").partition(b"\n")[0], 0)
    # A message that begins with a label has none before it.
    same_label = re.compile(re.sub(rb"\d+", rb"\\d+", re.escape(label)) if label else BRACKETS).match(line.text)
    words = line.decode(max(line.body, same_label.end() if same_label is not None else 0)).strip()
    return f"{message} {words}"[:MESSAGE_CHARACTERS] if words else message


def _line(tail: LogTail, offset: int) -> str:
    text = tail.context(offset, offset + MESSAGE_CHARACTERS * 4).lstrip(b"\r\n")
    return re.split(rb"[\r\n]", text, maxsplit=1)[0].decode(errors="replace")[:MESSAGE_CHARACTERS]


def _ranks(alike: Sequence[Record], chosen: Record, tails: dict[str, LogTail]) -> list[int]:
    if chosen["fault"] == "nccl-timeout":
        return suspect_ranks(alike, None)[0]
    ranks = {fault["rank"] for fault in alike if type(fault.get("rank")) is int}
    return sorted(ranks or {rank for rank, _ in _only_host(alike, tails)})


def _nodes(alike: Sequence[Record], faults: Sequence[Record], tails: dict[str, LogTail]) -> set[str]:
    """The nodes that the lines name, else the nodes of the srun tasks and torchelastic ranks with the same numbers.

    If the lines have no number, it is the node of the only task or rank that failed.
    """
    named = {fault["node"] for fault in alike if isinstance(fault.get("node"), str)}
    if named:
        return named
    by_task = {
        task: fault["node"] for fault in faults if isinstance(fault.get("node"), str) for task in _tasks(fault.get("tasks"))
    }
    ranks = {fault["rank"] for fault in alike if type(fault.get("rank")) is int}
    if not ranks and all("task" not in fault for fault in alike):
        is_only = len(by_task) == 1 and not any(map(_may_be_of_others, alike))
        return set(by_task.values()) if is_only else {host for _, host in _only_host(alike, tails)}
    task_hosts = {by_task[fault["task"]] for fault in alike if fault.get("task") in by_task}
    return task_hosts or {host for rank, host in _hosts(alike, tails) if rank in ranks}


def _only_host(alike: Sequence[Record], tails: dict[str, LogTail]) -> set[tuple[int, str]]:
    """The rank and host that torchelastic reports, if it reports only one."""
    hosts = set(_hosts(alike, tails))
    return hosts if len(hosts) == 1 and not any(map(_may_be_of_others, alike)) else set()


def _may_be_of_others(fault: Record) -> bool:
    """Whether the process that such a fault ends may be another than the one to blame."""
    return fault["fault"].startswith("nccl-") or fault["fault"] in ("rendezvous", "collective-mismatch", "miscomputation")


def _tasks(text: object) -> Iterator[int]:
    """The numbers in srun's `0-3,7`."""
    for span in text.split(",") if isinstance(text, str) else ():
        first, _, last = span.partition("-")
        if first.isdigit() and (last or first).isdigit():
            yield from range(int(first), min(int(last or first), int(first) + 4096) + 1)


def _hosts(alike: Sequence[Record], tails: dict[str, LogTail]) -> Iterator[tuple[int, str]]:
    """Ranks and their hosts in the report that torchelastic writes after the fault."""
    for file in {str(fault["src"].get("file")) for fault in alike}:
        tail = tails.get(file)
        if tail is not None:
            for match in _ELASTIC_HOST.finditer(tail.context(tail.size - LATE_OUTPUT_BYTES, tail.size)):
                yield int(match["rank"]), match["host"].decode()
