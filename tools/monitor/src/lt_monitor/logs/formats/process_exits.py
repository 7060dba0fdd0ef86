"""How processes end: Python exceptions, signals, the reports of launchers, and lt-train's own error line.

An exception counts where it begins the line, as the last line of a traceback does, or where a logger says `Uncaught`; one that is
quoted inside a message does not. Exceptions that only say that another process has gone are cascades. What an exception is about
decides the fault: a configuration that cannot work, the network, a loss that is no number, or the program itself.
"""

import re
import signal
from typing import Any

from lt_monitor.events.records import Record
from lt_monitor.logs.formats import fault, is_warning
from lt_monitor.logs.lines import Line

_EXCEPTION = re.compile(
    rb"(?:\([\w.:<>+-]{1,80} pid=\d{1,10}(?:, ip=[\d.:a-f]{1,40})?\) ?)?\s{0,4}"
    rb"(?P<name>(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception|Interrupt|Died|Full|Empty|NotFound))"
    rb"(?:\((?P<inner>\w{1,60})\))?(?:: |:?\s{0,200}$)"
)
_UNCAUGHT = re.compile(
    rb"\bUncaught (?:exception:? )?(?P<name>(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception))(?:: |\s*$)"
)
_GONE = re.compile(
    rb"ConnectionResetError|ConnectionRefusedError|BrokenPipeError|EOFError|ChildFailedError|DistNetworkError|DistStoreError"
    rb"|Connection (?:closed|reset) by|Rendezvous|Broken pipe|Socket [Tt]imeout|BrokenProcessPool|ProcessExitedException"
    rb"|ProcessRaisedException|RayTaskError|CalledProcessError"
    rb"|[Ww]orker \(pid(?:\(s\))? [\d, ]{1,200}\) exited unexpectedly|ActorDiedError"
    rb"|RayActorError|One or more (?:workers|processes)|TrainingFailedError|Pin memory thread exited"
)
_DISK_FULL = re.compile(
    rb"No space left on device|Disk quota exceeded|PytorchStreamWriter failed writing|StorageFull|os error 28\)"
    rb"|\[Errno (?:28|122)\]"
    rb"|inline_container\.cc:\d{1,6}\] \. unexpected pos \d{1,20} vs \d{1,20}|Error while serializing: (?:I/O error|IoError)"
)
_CONFIGURATION = re.compile(
    rb"^(?:ModuleNotFoundError|ImportError|\w{0,60}ConfigurationError|\w{0,40}ConfigError|\w{0,40}ConfigException"
    rb"|Misconfiguration(?:Exception|Error)"
    rb"|ConfigAttributeError|ConfigKeyError|MissingConfigException|\w{0,20}OptionError|UsageError)$"
)
_NETWORK = re.compile(
    rb"Network is unreachable|Temporary failure in name resolution|Name or service not known|Failed to resolve"
    rb"|NewConnectionError"
    rb"|ReadTimeoutError|ConnectTimeout(?:Error)?|Max retries exceeded|No route to host|ReadTimeout\b|EndpointConnectionError"
    rb"|ServiceUnavailable|(?:Server Error|HTTP Error|status code:?) 5\d\d|\b50[0234] (?:Server Error|Bad Gateway"
    rb"|Service Unavailable|Gateway)"
    rb"|Connection timed out|SSLEOFError|SlowDown\b"
)
_OF_NETWORK = re.compile(rb"^(?:ConnectionError|ProxyError|SSLError|ConnectTimeout|ClientConnectorError)$")
_NAN = re.compile(
    rb"loss scale already at minimum|Minimum loss scale reached|loss is (?:nan|inf)\b|Loss is (?:nan|inf)\b"
    rb"|contains? NaN|is NaN\b"
)
_WANDB = re.compile(rb"\bwandb\b|api\.wandb\.ai")
_ARGUMENTS = re.compile(
    rb"(?:^|\s)[\w./-]{1,200}: error: (?:unrecognized arguments|the following arguments are required|argument "
    rb"|ambiguous option"
    rb"|invalid choice|expected )|Some specified arguments are not used by the HfArgumentParser|Error: No such option"
)
_SIGNAL_EXCEPTION = re.compile(rb"SignalException: Process (?P<pid>\d{1,12}) got signal: (?P<signal>\d{1,3})")
_LOADER_KILLED = re.compile(
    rb"DataLoader worker \(pid (?:\(s\) )?\d{1,12}\) is killed by signal: (?P<name>Killed|Segmentation fault|Aborted"
    rb"|Terminated)"
    rb"|died with <Signals\.SIG\w{1,10}: (?P<number>\d{1,3})>|terminated with signal SIG(?P<short>KILL|SEGV|ABRT|TERM)\b"
)
_SIGNAL_NAMES = {
    b"Killed": 9,
    b"Segmentation fault": 11,
    b"Aborted": 6,
    b"Terminated": 15,
    b"KILL": 9,
    b"SEGV": 11,
    b"ABRT": 6,
    b"TERM": 15,
}
_RECEIVED = re.compile(rb"Signal (?P<signal>\d{1,3}) \(SIG[A-Z0-9]{1,10}\) received by PID")
_FAILED = re.compile(rb"failed \(exitcode: (?P<code>-?\d{1,5})\) local_rank: (?P<local_rank>\d{1,6}) \(pid: (?P<pid>\d{1,12})\)")
_REPORTED = re.compile(rb"^(?:\[[\w:-]{1,60}\]:? ?)?\s{0,8}exitcode {0,4}: (?P<code>-?\d{1,5}) \(pid: \d{1,12}\)")
# DeepSpeed's launcher, and Composer's.
_RETURNED = re.compile(
    rb"(?:exits with return code =|crashed with exit code|\(PID \d{1,12}\) exited with code) (?P<code>-?\d{1,5})"
)
# torchelastic's and Hydra's word that a program has failed, without why.
_REPORTS = re.compile(rb"errors\.ChildFailedError: |^ChildFailedError:|Error executing job with overrides: ")
_RAY_DIED = re.compile(
    rb"[Aa] worker died or was killed while executing a task|The actor (?:died unexpectedly"
    rb"|is dead because its worker process has died)"
    rb"|Worker exit type: SYSTEM_ERROR"
)
_CRASH = re.compile(
    rb"^(?:.{0,200}: (?:line )?\d{1,9}:? {1,8}\d{0,12} {0,8})?(?P<what>Segmentation fault|Killed(?= |\s{0,200}$)"
    rb"|Aborted \(core dumped\))"
    rb"|Fatal Python error: (?P<fatal>[^\r\n]{1,60})|\*\*\* Process received signal \*\*\*"
    rb"|Caught signal (?P<signal>\d{1,2}) \("
)
_TOOL = re.compile(rb"lt-train: error: ")
_OTHERS_GONE = re.compile(rb"communication with the other ranks failed|the connection to rank 0 was lost")
_RANK_KILLED = re.compile(
    rb"rank (?P<rank>\d{1,7}) on (?P<node>\S{1,200}) was ended by (?P<signal>SIG(?:KILL|TERM|SEGV|BUS|ABRT|ILL|FPE|INT"
    rb"|HUP|USR1|USR2)); "
)
# Of a step that was computed twice, or of weights that several ranks share; `others` where other ranks may be the cause.
_MISCOMPUTED = re.compile(
    rb"rank (?P<rank>\d{1,7}) on (?P<node>\S{1,200}): (?:computed step \d{1,15} twice, and the results differ: [^;]{1,400}"
    rb"|holds at step \d{1,15} other weights than|at step \d{1,15} the weights of ranks that share them differ)"
    rb"(?P<others>; so do)?"
)
# Signals by which others ask a process to end; SIGABRT is how a watchdog ends its own process.
_ASKED = frozenset({signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP})


def exception(line: Line) -> Record | None:
    """The last line of a traceback."""
    match = _EXCEPTION.match(line.text, line.body) or _UNCAUGHT.search(line.text)
    if match is None:
        return None
    if (signalled := _SIGNAL_EXCEPTION.search(line.text)) is not None:
        return fault(line, "killed", "cascade", "warning", signal=int(signalled["signal"]))
    name = match["name"]
    if name.endswith(b"ChildFailedError"):
        return None
    if name == b"KeyboardInterrupt":
        return fault(line, "killed", "unknown", "warning", signal=2)
    if (killed := _LOADER_KILLED.search(line.text)) is not None:
        return _killed(line, int(killed["number"]) if killed["number"] else _SIGNAL_NAMES[killed["name"] or killed["short"]])
    told = name.decode()
    if _WANDB.search(line.text, match.start()) is not None:
        return fault(line, "traceback", "unknown", "warning", exception=told)
    if _CONFIGURATION.match(name.rpartition(b".")[2]) is not None:
        return fault(line, "configuration", "root", "critical", exception=told)
    if _OF_NETWORK.match(name.rpartition(b".")[2]) is not None or _NETWORK.search(line.text, match.start()) is not None:
        return fault(line, "network", "root", "critical", exception=told)
    is_gone = _GONE.search(line.text, match.start()) is not None
    return fault(line, "traceback", "cascade" if is_gone else "root", "critical", exception=told)


def not_a_number(line: Line) -> Record | None:
    """A trainer that ended itself, because its loss or its loss scale was no number any more."""
    match = _NAN.search(line.text)
    is_error = match is not None and (b"Error: " in line.text or b"Exception: " in line.text or b"Exiting" in line.text)
    return fault(line, "nan", "root", "critical") if is_error else None


def tracker(line: Line) -> Record | None:
    """wandb that could not be reached at the start, which ends the program that did not expect it."""
    is_error = b"ERROR Run initialization has timed out" in line.text
    return fault(line, "network", "unknown", "critical") if is_error else None


def arguments(line: Line) -> Record | None:
    """A command line that its program does not take, as argparse and click say it."""
    return fault(line, "configuration", "root", "critical", exit_code=2) if _ARGUMENTS.search(line.text) is not None else None


def tool_error(line: Line) -> Record | None:
    match = _TOOL.search(line.text)
    if match is None:
        return None
    if (killed := _RANK_KILLED.match(line.text, match.end())) is not None:
        number = int(signal.Signals[killed["signal"].decode()])
        cause = "cascade" if number == signal.SIGTERM else "root"
        node = killed["node"].decode(errors="replace")
        return fault(line, "killed", cause, "critical", match.start(), rank=int(killed["rank"]), node=node, signal=number)
    if (wrong := _MISCOMPUTED.match(line.text, match.end())) is not None:
        return _miscomputed(line, match.start(), wrong)
    cause = "cascade" if _OTHERS_GONE.search(line.text) is not None else "root"
    return fault(line, "traceback", cause, "critical", match.start())


def _miscomputed(line: Line, begin: int, wrong: re.Match[bytes]) -> Record:
    """Names a node only where it is the one that computes wrong, not one of several."""
    is_sure = wrong["others"] is None and b"no majority" not in line.text
    rank, node = int(wrong["rank"]), wrong["node"].decode(errors="replace")
    sure: dict[str, Any] = {"rank": rank, "node": node} if is_sure else {}
    return fault(line, "miscomputation", "root", "critical", begin, **sure)


def disk(line: Line) -> Record | None:
    match = _DISK_FULL.search(line.text)
    return None if match is None or is_warning(line, match.start()) else fault(line, "disk-full", "root", "critical")


def ending(line: Line) -> Record | None:
    """Signals and exit codes. Launchers report them after the fact; a process that crashed says so itself."""
    text = line.text
    if (match := _RECEIVED.search(text)) is not None:
        return _killed(line, int(match["signal"]))
    if (match := _FAILED.search(text)) is not None:
        return _ended(line, int(match["code"]), local_rank=int(match["local_rank"]))
    if (match := _REPORTED.search(text) or _RETURNED.search(text)) is not None:
        return _ended(line, int(match["code"])) if int(match["code"]) else None
    if _REPORTS.search(text, line.body) is not None:
        return fault(line, "exit", "cascade", "critical")
    if _RAY_DIED.search(text) is not None:
        return fault(line, "killed", "unknown", "critical")
    return _crash(line)


def _crash(line: Line) -> Record | None:
    match = _CRASH.search(line.text)
    if match is None:
        return None
    if match["what"] == b"Killed":
        return _killed(line, 9)
    is_aborted = match["fatal"] is not None and match["fatal"].startswith(b"Aborted")
    if is_aborted or (match["what"] or b"").startswith(b"Aborted"):
        return _killed(line, 6)
    number = 11 if match["what"] else int(match["signal"]) if match["signal"] else None
    number = 11 if match["fatal"] is not None and match["fatal"].startswith(b"Segmentation") else number
    return fault(line, "killed", "root", "critical", signal=number or 6)


def _ended(line: Line, code: int, **fields: int) -> Record:
    """A process with an exit code as Python counts it (below 0: a signal), or as a shell does (above 128)."""
    if code < 0 or 128 < code < 160:
        return _killed(line, -code if code < 0 else code - 128, **fields)
    return fault(line, "exit", "cascade", "critical", exit_code=code, **fields)


def _killed(line: Line, number: int, **fields: int) -> Record:
    return fault(line, "killed", "cascade" if number in _ASKED else "unknown", "critical", signal=number, **fields)
