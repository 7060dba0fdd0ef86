"""How what started a process reports that it failed: mpirun and mpiexec, launchers of trainers, clouds, shells, make, systemd.

Open MPI, PRRTE, MPICH's Hydra and Intel MPI; PaddlePaddle, Lightning, SkyPilot, Determined, SageMaker, Vertex AI, compose, pdsh.
Why the process failed is in its own lines, if anywhere.
"""

import re
import signal
from typing import Any

from lt_monitor.events.records import Record
from lt_monitor.logs.formats import process_exits
from lt_monitor.logs.line_parsers import BRACKETS, fault, regex
from lt_monitor.logs.lines import Line

_SIGNALLED = regex(
    rb"noticed that process rank (?P<rank>\d{1,7}) with PID \d{1,12} on node (?P<node>[\w.-]{1,253}) exited on"
    # PRRTE breaks the line before the number.
    rb"(?: signal (?P<signal>\d{1,2})\b|\s{0,9}$)"
    rb"|One or more process(?:es)? \(first noticed rank (?P<first>\d{1,7})\) terminated with signal (?P<jsrun>\d{1,2})\b"
    rb"|EXIT STRING: .{1,60} \(signal (?P<hydra>\d{1,2})\)|=   KILLED BY SIGNAL: (?P<intel>\d{1,2})\b"
)
_FAILED = regex(
    rb"detected that one or more processes exited with non-zero status|process(?:es)? returned a non-zero exit code"
    rb"|^a non-zero exit code\b|BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES"
    rb"|(?:MPI_ABORT was invoked on rank|Abort\(\d{1,10}\)[^\r\n]{0,80} \(rank) (?P<rank>\d{1,7})\b"
    rb"|called MPI_Abort\((?:\w{1,40}, )?-?\d{1,10}\)(?: - process (?P<process>\d{1,7}))?"
)
_UNSTARTED = regex(
    rb"There are not enough slots available in the system to satisfy|was unable to find the specified executable file"
)
# Reports with the code that Python (below 0: a signal) or a shell (above 128) would give.
_CODED = regex(
    # PaddlePaddle's launcher, and Lightning's.
    rb"(?:\brank (?P<rank>\d{1,7}) )?\bstatus failed cmd \[.{1,60000}?\] code (?P<paddle>-?\d{1,5})\b"
    rb"|Child process with PID \d{1,12} terminated with code (?P<lightning>-?\d{1,5})\b"
    # Determined and GitLab; Vertex AI; Taskcluster and GitHub; SkyPilot.
    rb"|failed(?: with non-zero exit code)?: exit code:? (?P<gitlab>\d{1,5})\b"
    rb"|failed with non-zero exit code: (?P<container>\d{1,5})\b"
    rb"|exited with a non-zero status of (?P<vertex>\d{1,5})\b"
    rb"|(?:Unsuccessful task run with|Process completed with) exit code:? (?P<task>\d{1,5})\b"
    rb"|failed with return code list: \[(?:0, ){0,4096}(?P<skypilot>\d{1,5})\b"
    rb"|Job entrypoint command failed with exit code (?P<ray>\d{1,5})\b"
    # GNU time, LSF, pdsh, docker compose.
    rb"|Command (?:exited with non-zero status|terminated by signal) (?P<command>\d{1,5})\b"
    rb"|\bpdsh@[\w.-]{1,253}: (?P<node>[\w.-]{1,253}): ssh exited with exit code (?P<ssh>\d{1,5})\b"
)
_CODED_LINE = regex(
    BRACKETS + rb"\s{0,4}(?:Exited (?:with exit code|by signal) (?P<lsf>\d{1,5})\."
    # kubectl exec, IDEs, container runtimes.
    rb"|(?:[Ee]rror: |ERROR: )?(?:the )?[Cc]ommand terminated with (?:non-zero )?exit code:? (?P<kubectl>\d{1,5})\s{0,9}$"
    rb"|Process finished with exit code (?P<ide>\d{1,5})(?: \([^()\r\n]{1,200}\))?\s{0,9}$"
    rb"|(?:[Ee]rror: |ERROR: )?(?:[Tt]he )?[Cc]ontainer(?: \S{1,253})? (?:exited|terminated|died|stopped|failed) with"
    rb" (?:an? )?(?:non-?zero )?(?:exit )?(?:code|status)(?: code)?:? ?(?P<oci>\d{1,5})\.?\s{0,9}$"
    # Jobs of bash and zsh that run in the background.
    rb"|\[\d{1,4}\] {0,4}[+-]? {1,4}(?:\d{1,10} {1,4})?[Ee]xit (?P<job>\d{1,3}) {2,40}\S"
    rb"|(?!\S{0,200}[Ee]rror)[\w.-]{1,253}(?: \(\w{1,60}\))? exited with code (?P<service>\d{1,5})(?: \(restarting\))?\s{0,9}$"
    rb"|make(?:\[\d{1,3}\])?: \*\*\* \[[^\]\r\n]{1,300}\] Error (?P<make>\d{1,5})\b)"
)
_IS_SIGNAL = regex(rb"terminated by signal|Exited by signal")
_SYSTEMD = regex(rb"\bMain process exited, code=(?P<how>exited|killed|dumped), status=(?P<status>\d{1,3})/")
_WORDS = {
    b"killed": 9,
    b"segmentation fault": 11,
    b"abort": 6,
    b"aborted": 6,
    b"bus error": 7,
    b"terminated": 15,
    b"hangup": 1,
    b"illegal instruction": 4,
    b"illegal hardware instruction": 4,
    b"floating point exception": 8,
}
# zsh, jobs of bash and zsh that run in the background, make, fish.
_SHELL = regex(
    BRACKETS + rb"(?:zsh: |\[\d{1,4}\] {0,4}[+-]? {1,4}(?:\d{1,10} {1,4})?|make(?:\[\d{1,3}\])?: \*\*\* \[[^\]\r\n]{1,300}\] )"
    rb"(?P<what>" + b"|".join(_WORDS) + rb")(?: {1,4}\(core dumped\))?(?: {2}|\s{0,9}$)"
    rb"|fish: .{1,400}? terminated by signal (?P<fish>SIG(?:KILL|SEGV|ABRT|BUS|TERM|HUP|INT|ILL|FPE))\b",
    re.IGNORECASE,
)
# bash's words for SIGKILL, SIGSEGV and SIGABRT in German, French and Chinese, behind its word for `line`.
_TRANSLATED = {
    **dict.fromkeys(("Getötet", "Processus arrêté", "已杀死"), 9),
    **dict.fromkeys(("Speicherzugriffsfehler", "Erreur de segmentation", "段错误"), 11),
    "Abgebrochen": 6,
}
TRANSLATED_KEYWORDS = tuple(word.encode() for word in _TRANSLATED)
_IN_OTHER_LANGUAGES = regex(
    rb"^\S{1,300} [^\d\r\n]{0,20}\d{1,9}[^\d\r\n]{1,12}\d{1,12} {1,8}(?P<what>"
    + b"|".join(TRANSLATED_KEYWORDS)
    + rb")(?:[ (\r\n]|$)"
)
_UNCODED = regex(
    rb"ABORT!!! Out of all \d{1,7} trainers, the trainer process with rank=(?:\[(?P<rank>\d{1,7})\])?|\bExecuteUserScriptError:"
    rb"|Reporting training FAILURE|BackoffLimitExceeded|has reached the specified backoff limit"
    rb"|srun: error: Timed out waiting for job step|HYDRA_FULL_ERROR=1 for a complete stack trace"
)


def ending(line: Line) -> Record | None:
    """Parse mpirun's report of a failed process."""
    if (match := _SIGNALLED.search(line.text)) is not None:
        if match["jsrun"]:
            return process_exits.killed(line, int(match["jsrun"]), rank=int(match["first"]))
        if match["rank"] is None:
            return process_exits.killed(line, int(match["hydra"] or match["intel"]))
        place: dict[str, Any] = {"rank": int(match["rank"]), "node": match["node"].decode()}
        if match["signal"] is None:
            return fault(line, "killed", "unknown", "critical", **place)
        return process_exits.killed(line, int(match["signal"]), **place)
    match = _FAILED.search(line.text) or _FAILED.match(line.text[line.body :])
    if match is None:
        return None
    rank = match["rank"] or match["process"]
    return fault(line, "exit", "cascade", "critical", rank=int(rank) if rank else None)


def unstarted(line: Line) -> Record | None:
    """Parse mpirun's report of a program that it cannot start."""
    return fault(line, "configuration", "unknown", "critical") if _UNSTARTED.search(line.text) is not None else None


def report(line: Line) -> Record | None:
    """An exit code or a signal that a launcher, a shell or a service manager reports."""
    if b"out-of-memory" in line.text:
        return None
    match = _CODED.search(line.text) or _CODED_LINE.match(line.text, line.body)
    if match is not None:
        codes = match.groupdict()
        node, rank = codes.pop("node", None), codes.pop("rank", None)
        code = next(int(text) for text in codes.values() if text is not None)
        if _IS_SIGNAL.search(match[0]) is not None:
            return process_exits.killed(line, code)
        place: dict[str, Any] = {"node": node.decode()} if node else {"rank": int(rank)} if rank else {}
        return process_exits.ended(line, code, **place) if code else None
    if (match := _SYSTEMD.search(line.text)) is not None:
        status = int(match["status"])
        if match["how"] != b"exited":
            return process_exits.killed(line, status)
        return process_exits.ended(line, status) if status else None
    if (match := _SHELL.match(line.text, line.body)) is not None:
        what, fish = match["what"], match["fish"]
        return process_exits.killed(line, _WORDS[what.lower()] if what else int(signal.Signals[fish.decode().upper()]))
    if (match := _IN_OTHER_LANGUAGES.match(line.text[line.body :])) is not None:
        return process_exits.killed(line, _TRANSLATED[match["what"].decode()])
    match = _UNCODED.search(line.text)
    if match is None:
        return None
    return fault(line, "exit", "cascade", "critical", rank=int(match["rank"]) if match["rank"] else None)
