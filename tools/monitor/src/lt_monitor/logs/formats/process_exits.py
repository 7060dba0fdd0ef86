"""How processes end: Python exceptions, signals, torchelastic's report, and lt-train's own error line.

An exception counts where it begins the line, as the last line of a traceback does; one that is quoted inside a message does not.
Exceptions that only say that another process has gone are cascades.
"""

import re
import signal

from lt_monitor.events.records import Record
from lt_monitor.logs.formats import fault
from lt_monitor.logs.lines import Line

_EXCEPTION = re.compile(
    rb"\s{0,4}(?P<name>(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception)|KeyboardInterrupt)(?:: |\s*$)"
)
_GONE = re.compile(
    rb"ConnectionResetError|ConnectionRefusedError|BrokenPipeError|EOFError|ChildFailedError|DistNetworkError|DistStoreError"
    rb"|Connection (?:closed|reset) by|Rendezvous|Broken pipe|Socket [Tt]imeout"
)
_DISK_FULL = re.compile(rb"No space left on device|Disk quota exceeded")
_SIGNAL_EXCEPTION = re.compile(rb"SignalException: Process (?P<pid>\d{1,12}) got signal: (?P<signal>\d{1,3})")
_RECEIVED = re.compile(rb"Signal (?P<signal>\d{1,3}) \(SIG[A-Z0-9]{1,10}\) received by PID")
_FAILED = re.compile(rb"failed \(exitcode: (?P<code>-?\d{1,5})\) local_rank: (?P<local_rank>\d{1,6}) \(pid: (?P<pid>\d{1,12})\)")
_CRASH = re.compile(
    rb"^(?:.{0,200}: (?:line )?\d{1,9}:? {1,8}\d{0,12} {0,8})?(?P<what>Segmentation fault|Bus error)\b|Fatal Python error: "
)
_TOOL = re.compile(rb"lt-train: error: ")
_OTHERS_GONE = re.compile(rb"communication with the other ranks failed|the connection to rank 0 was lost")
_RANK_KILLED = re.compile(
    rb"rank (?P<rank>\d{1,7}) on \S{1,200} was ended by (?P<signal>SIG(?:KILL|TERM|SEGV|BUS|ABRT|ILL|FPE|INT|HUP|USR1|USR2)); "
)


def exception(line: Line) -> Record | None:
    """The last line of a traceback."""
    match = _EXCEPTION.match(line.text, line.body)
    if match is None:
        return None
    if (signalled := _SIGNAL_EXCEPTION.search(line.text)) is not None:
        return fault(line, "killed", "cascade", "warning", signal=int(signalled["signal"]))
    if match["name"] == b"KeyboardInterrupt":
        return fault(line, "killed", "unknown", "warning", signal=2)
    is_gone = _GONE.search(line.text) is not None
    return fault(line, "traceback", "cascade" if is_gone else "root", "critical", exception=match["name"].decode())


def tool_error(line: Line) -> Record | None:
    match = _TOOL.search(line.text)
    if match is None:
        return None
    if (killed := _RANK_KILLED.match(line.text, match.end())) is not None:
        number = int(signal.Signals[killed["signal"].decode()])
        cause = "cascade" if number == signal.SIGTERM else "root"
        return fault(line, "killed", cause, "critical", match.start(), rank=int(killed["rank"]), signal=number)
    cause = "cascade" if _OTHERS_GONE.search(line.text) is not None else "root"
    return fault(line, "traceback", cause, "critical", match.start())


def disk(line: Line) -> Record | None:
    return fault(line, "disk-full", "root", "critical") if _DISK_FULL.search(line.text) is not None else None


def ending(line: Line) -> Record | None:
    """Signals and exit codes. torchelastic reports them after the fact; a process that crashed says so itself."""
    text = line.text
    if (match := _RECEIVED.search(text)) is not None:
        number = int(match["signal"])
        return fault(line, "killed", "cascade" if number == 15 else "unknown", "critical", signal=number)
    if (match := _FAILED.search(text)) is not None:
        code = int(match["code"])
        if code < 0:
            return fault(line, "killed", "unknown", "critical", signal=-code, local_rank=int(match["local_rank"]))
        return fault(line, "exit", "cascade", "critical", exit_code=code, local_rank=int(match["local_rank"]))
    if (match := _CRASH.search(text)) is not None:
        number = 7 if match["what"] == b"Bus error" else 11 if match["what"] else 6
        return fault(line, "killed", "root", "critical", signal=number)
    return None
