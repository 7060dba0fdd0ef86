"""Words that are evidence only at the very end of a log, because they could mean anything elsewhere.

If a signal ends a program, a shell prints only `Killed`. The text before this word is a label if earlier lines begin with the
same text, apart from digits: a tag of GNU parallel, a task of Determined, a prefix of glog or of syslog.
"""

import re

from lt_monitor.logs.formats import process_exits
from lt_monitor.logs.labels import margins, prefixes
from lt_monitor.logs.line_parsers import BRACKETS, regex
from lt_monitor.logs.lines import Line

# A prompt or the like may follow the word.
MAXIMUM_LINES_AFTER = 2
# Lines before the word that are compared with the text before the word.
LABELLED_LINES = 8
MAXIMUM_LABEL_BYTES = 200
LAST_BYTES = 1 << 13

_SIGNALS = {b"Killed": 9, b"Terminated": 15, b"Hangup": 1, b"Segmentation fault": 11, b"Aborted": 6}
_WORD = regex(
    rb"(?P<word>"
    + b"|".join(_SIGNALS)
    + rb")(?: \(core dumped\))?(?: \[repeated \d{1,7}x across cluster\])?(?:\[0?m)?[ \t\"}]{0,80}$"
)
_ALONE = regex(BRACKETS + rb"$")
# A bar or a spinner that the word overwrites.
_BAR_END = regex(rb"(?:it/s|s/it|it/min|\d\d:\d\d)[^\[\]\r\n]{0,200}\] {0,80}$|[\d )][\\|/-]$")
_COLOUR = regex(rb"\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]|\[\d{1,3}(?:;\d{1,3}){0,7}m|\x1b_bk;t=\d{1,20}\x07")
_NUMBER = regex(rb"\d+")
_LOST = regex(
    rb"(?:^|\n)(?P<line>ssh: connect to host [^\n]{1,300}: (?:Connection timed out|Connection refused|No route to host"
    rb"|Network is unreachable)|Connection to \S{1,253} closed by remote host\.|client_loop: send disconnect: Broken pipe"
    rb"|Connection reset by \S{1,60} port \d{1,5})\s{0,99}$"
)

# click's and typer's word for a program that has given up, for Ctrl-C or for a question that was not answered.
_GAVE_UP = regex(rb"(?:^|\n)(?P<line>Aborted[!.])\s{0,99}$")
# PyTorch's store says that another process has the port. It is only a warning, because the store tries the next address.
_PORT = regex(
    rb"(?:^|\n)(?P<line>[^\n]{0,200}The server socket has failed to (?:listen on|bind to) [^\n]{1,200}"
    rb"Address already in use\)\.?)\s{0,99}$"
)
# A step line of any trainer whose loss is NaN, with any other losses before it.
_NAN_STEP = regex(
    rb"\b(?:step|iter|iteration|batch)\b[^\w\n]{0,4}\d{1,12}\b(?:(?!\bloss\b)[^\n]){0,4000}?"
    rb"\b(?:(?:lm_|train_)?loss|ppl|xent)\b[^\w\n]{1,6}nan\b"
    rb"|\b(?:lm_|train_)?loss\b[^\w\n]{1,4}nan\b[^\n]{0,200}?\b(?:global_|current_)?(?:step|iter)\b[^\w\n]{1,4}\d",
    re.IGNORECASE,
)


def signalled(text: bytes) -> tuple[bytes, int] | None:
    """Return the shell's word and the signal number if the last lines of `text` report that a signal ended a program."""
    lines = [_COLOUR.sub(b"", line) for line in text[-LAST_BYTES:].rstrip().split(b"\n")]
    for index in range(max(0, len(lines) - 1 - MAXIMUM_LINES_AFTER), len(lines)):
        match = _WORD.search(lines[index], max(0, len(lines[index]) - MAXIMUM_LABEL_BYTES * 2))
        if match is not None and _is_said_by_shell(lines[:index], lines[index], match.start()):
            return match["word"], _SIGNALS[match["word"]]
    return None


def _is_said_by_shell(before: list[bytes], line: bytes, begin: int) -> bool:
    label = line[:begin]
    if _ALONE.match(label, prefixes.chain_end(label)) is not None or _BAR_END.search(label) is not None:
        return True
    if len(label) > MAXIMUM_LABEL_BYTES or line[begin - 1 : begin].isalnum() or Line(line, 0).body == begin:
        return Line(line, 0).body == begin
    pattern = re.compile(_NUMBER.sub(rb"\\d+", re.escape(label)))
    earlier_lines = [other for other in before if other.strip()][-LABELLED_LINES:]
    alike = sum(pattern.match(other) is not None for other in earlier_lines)
    return alike > 0 and alike > len(earlier_lines) // 2


def losses_without_number(text: bytes, count: int) -> bool:
    """Whether the last `count` lines of a log are steps of an unknown trainer with NaN losses."""
    lines = text[-LAST_BYTES:].rstrip().split(b"\n")[-count:]
    return len(lines) == count and all(_NAN_STEP.search(line) is not None for line in lines)


# An exception without `Traceback` before it: the log may begin within the traceback.
_BARE_EXCEPTION = regex(
    rb"(?:^|\n)(?P<line>\s{0,4}(?P<name>(?:[A-Za-z_]\w{0,60}\.){1,10}[A-Z]\w{0,60}[a-z]\w{0,60})"
    rb"(?:\(\w{1,60}\))?(?:: [^\n]{1,2000}|:?))\s{0,99}"
    rb"(?:\n[^\n]{0,400}){0,8}$"
)
_LAST_ERROR = regex(
    rb"(?:^|\n)(?P<line>(?:[\w./-]{1,200}: )?(?:\x1b\[[\d;]{0,20}m)?(?:fatal|FATAL|Fatal|error|ERROR|Error)(?: error)?"
    rb"(?:\x1b\[[\d;]{0,20}m)?: [^\n]{1,2000})\s{0,99}(?:\n[^\n]{0,400}){0,2}$"
)
# JavaScript's, with its frames.
_WITH_FRAMES = regex(
    rb"(?:^|\n)(?P<line>(?:Uncaught )?(?:[A-Z]\w{0,60})?Error(?: \[\w{1,60}\])?: [^\n]{1,2000})\n(?: {4}at [^\n]{1,400}\n){1,60}"
    rb"(?:[^\n]{0,400}\n){0,8}[^\n]{0,400}$"
)
# A script's words about the exit code of a program.
_CODE = regex(rb"(?i)\bexit(?:ed)?(?: with)?(?: an?)? (?:non-?zero )?(?:exit )?(?:status|code)\b|\breturned (?:a )?non-?zero\b")
# Programs that start the trainer; their errors are not the trainer's exceptions.
_OUTSIDE = regex(rb"(?:srun|sbatch|salloc|scancel|slurmstepd|slurmd|kubectl|docker|podman|apptainer|singularity|enroot): ")


# Of a process whose death its parent may survive; then other lines follow.
_OF_HELPER = regex(rb"ERROR: Unexpected [a-z ]{1,30} encountered in worker")


def last_error(text: bytes) -> tuple[bytes, str, str] | None:
    """Find an error at the end of a log in a form that no other format knows; return its line, fault and cause."""
    begin = max(0, len(text) - LAST_BYTES)
    for pattern in (_BARE_EXCEPTION, _WITH_FRAMES, _LAST_ERROR):
        match = pattern.search(text.rstrip(), begin)
        if match is None:
            continue
        line = match["line"].strip()
        if _OUTSIDE.match(line) is not None or _CODE.search(line) is not None:
            return line, "exit", "cascade"
        if _OF_HELPER.search(line) is not None:
            return line, "killed", "unknown"
        if pattern is _LAST_ERROR:
            # A compiler, a copying program, git: only people know whether the same would happen again.
            return line, "unknown", "unknown"
        exception = process_exits.raised(Line(line, 0), match["name"], 0, 0) if pattern is _BARE_EXCEPTION else None
        return (line, exception["fault"], exception["cause"]) if exception is not None else (line, "traceback", "root")
    for pattern, name, cause in ((_LOST, "network", "unknown"), (_PORT, "rendezvous", "cascade"), (_GAVE_UP, "exit", "cascade")):
        match = pattern.search(text.rstrip(), begin)
        if match is not None:
            return match["line"], name, cause
    return None


# A line that tells of a failure in words alone, at its beginning (behind labels) or as the last word of a program.
_FAILED = regex(
    rb"^(?:(?:\[|<)?(?:FATAL|CRITICAL|ERROR)[\]>:]?[\s|]|(?:\[|<)?(?:FATAL|CRITICAL|ERROR|Fatal|Critical|fatal|critical|Error|error)(?:\]|>)?"
    rb"(?::| [-|]|  ?(?=[\[A-Z])|\]| error)"
    rb"|(?:make|gmake|ninja|cmake|sbatch|salloc|scontrol|torchrun|accelerate|deepspeed|docker|podman|kubectl|apptainer|enroot|pyxis)"
    rb"(?:\[\d{1,3}\])?: (?:\*\*\* |error|fatal|build stopped))"
    rb"|(?i:\bgiving up\b|\baborting\b|\bexiting (?:now|with|due to|because)\b|\bterminated abnormally\b|\bcannot continue\b"
    rb"|\b(?:stopping|terminating|killing) (?:the )?(?:training|run|job) due to (?:an? )?"
    rb"(?:lack of heartbeats?|errors?|exceptions?|failures?|crash(?:es)?|time-?outs?)\b"
    rb"|\bunrecoverable\b|\b(?:job|run|training|process|program|script|task) (?:has )?(?:failed|crashed|aborted)\b)"
)
# An error of a shell or of a program that a script calls, as the last line: scripts may go on after such errors. bash's own lines
# have a line number; the lines of other programs have words of errno, or in other languages a quoted path between two colons.
_PROGRAM_FAILED = regex(
    rb"^\S{1,300}(?<!\.py): line \d{1,9}: [^\n]{1,300}: \S"
    rb"|^(?:\S{1,300}: )?(?:\d{1,9}: )?[\w./-]{1,200}: [^\n]{0,1000}"
    rb"(?:No such file or directory|Permission denied|File exists|(?:Is|Not) a directory|Directory not empty"
    rb"|Read-only file system|Operation not permitted|Invalid argument|(?:Device or resource|Text file) busy"
    rb"|Argument list too long|Too many open files"
    rb"|Too many levels of symbolic links|File name too long|Invalid cross-device link|Bad file descriptor|Broken pipe"
    rb"|Connection (?:refused|timed out|reset by peer)|No route to host|Name or service not known)\)?\.?\s{0,9}$"
    rb"|^(?:cp|mv|rm|ln|ls|cat|mkdir|rmdir|touch|chmod|chown|tar|gzip): "
    rb"[^\n]{0,300}(?:['\"]|\xe2\x80|\xc2\xab)[^\n]{1,400}: [^\n\d]{3,300}$"
    rb"|^(?:rsync|parse) error: \S|^curl: \(\d{1,3}\) |^(?:up|down)load failed: |^(?:copy|move) failed: "
)
# Questions and remarks, files that scripts write to if they may, and what a logger prints as no error.
_REMARK = regex(
    rb"\? ?$|: Removing leading|(?i:warn(?:ing)?\b|\bskipp|\bomitt|\bignor|\b(?:debug|info|trace|notice|verbose)\b)"
    rb"|\b[IWD]\d{4} \d\d:|[ '\"]/(?:proc|sys|dev)/(?!shm)"
)
_NO_FAILURE = regex(
    rb"(?i)\bwandb\b|\bnon-fatal\b|\bretry|\bwill (?:be )?(?:retried|ignored?)|\bfall(?:ing)? ?back|\bskip|\bignor|\binstead\b"
    rb"|\bcontinu(?:e|ing) (?:with|without)"
    rb"|\bUnable to register\b|\b(?:0|no) (?:errors?|failures?)\b|\bdoes not affect\b|\bcan be (?:safely )?ignored"
)
TELLING_LINES = 3
# The last lines, among which a failure stands.
LAST_LINES = 6


def telling(text: bytes) -> bytes | None:
    """Return the first of the last lines of `text` that tells of a failure in words alone; None if no line does."""
    lines = [_COLOUR.sub(b"", line) for line in text[-LAST_BYTES:].rstrip().split(b"\n")]
    filled = [line for line in lines if line.strip()][-LAST_LINES:]
    for line in filled:
        begins = (Line(line, 0).body, *margins.boundaries(line, Line(line, 0).body))
        words = next((line[begin:] for begin in begins if _FAILED.match(line[begin:]) is not None), None)
        words = words if words is not None else line if not margins.is_quiet(line) and _FAILED.search(line) is not None else None
        if words is not None and _NO_FAILURE.search(line) is None and (line is filled[-1] or _OF_HELPER.search(line) is None):
            return line
    return filled[-1] if filled and _is_error_of_program(filled[-1]) else None


def _is_error_of_program(line: bytes) -> bool:
    begins = (Line(line, 0).body, *margins.boundaries(line, Line(line, 0).body))
    is_error = any(_PROGRAM_FAILED.match(line[begin:]) is not None for begin in begins)
    return is_error and _REMARK.search(line) is None and not margins.is_quiet(line)
