"""How processes end: Python exceptions, signals, the reports of launchers, and lt-train's own error line.

An exception counts if it begins the line, like the last line of a traceback, or if a logger prints `Uncaught` before it. An
exception quoted inside a message does not count. Exceptions that only report the end of another process are cascades. The
exception's subject decides the fault: a configuration that cannot work, the network, a NaN loss, or the program itself.
"""

import re
import signal
from typing import Any

from lt_monitor.events.records import Record
from lt_monitor.logs.line_parsers import BRACKETS, fault, is_warning, regex
from lt_monitor.logs.lines import Line

_EXCEPTION = regex(
    BRACKETS + rb"(?:\([\w.:<>+-]{1,80} pid=\d{1,10}(?:, ip=[\d.:a-f]{1,40})?\) ?)?\s{0,4}"
    rb"(?P<name>(?:[A-Za-z_]\w{0,60}\.){0,8}(?:[A-Z]\w{0,60}(?:Error|Exception|Interrupt|Died|Full|Empty|NotFound)|Exception))"
    rb"(?:\((?P<inner>\w{1,60})\))?(?:: |:?\s{0,200}$)"
)
_UNCAUGHT = regex(
    # Of Java, whose thread "main" is the program, and of Julia.
    rb"(?:\bUncaught (?:exception:? )?|^Exception in thread \"main\" |^ERROR: (?:(?:LoadError|InitError|TaskFailedException): )?)"
    rb"(?P<name>(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception))(?:: |:?\s{0,9}$)"
)
# Java's chain of exceptions: each line has the cause of the exception before it, with frames between.
_CAUSED_BY = regex(rb"^\s{0,20}Caused by: (?P<name>(?:[A-Za-z_]\w{0,60}\.){1,10}[A-Z][\w$]{0,80})(?:: |\s{0,9}$)")
_GONE = regex(
    rb"ConnectionResetError|ConnectionRefusedError|BrokenPipeError|EOFError|ChildFailedError|DistNetworkError|DistStoreError"
    rb"|Connection (?:closed|reset) by|Rendezvous|Broken pipe|Socket [Tt]imeout|BrokenProcessPool|ProcessExitedException"
    rb"|ProcessRaisedException|RayTaskError|CalledProcessError"
    rb"|[Ww]orker \(pid(?:\(s\))? [\d, ]{1,200}\) exited unexpectedly|ActorDiedError|NodeDiedError|LocalRayletDiedError"
    rb"|WorkerCrashedError|OwnerDiedError"
    # The original traceback follows.
    rb"|function error: Hccl\w|Caught \w{1,60} in (?:DataLoader worker process|replica) \d"
    rb"|RayActorError|One or more (?:workers|processes)|TrainingFailedError|Pin memory thread exited"
)
_DISK_FULL = regex(
    rb"No space left on device|Disk quota exceeded|PytorchStreamWriter failed writing|StorageFull|os error 28\)"
    rb"|\[Errno (?:28|122)\]"
    rb"|inline_container\.cc:\d{1,6}\] \. (?:unexpected pos \d{1,20} vs \d{1,20}|file write failed)|database or disk is full"
    # Of a file that went stale, and of a mount that failed, the filesystem is the cause.
    rb"|Error while serializing: (?:I/O error|IoError)(?!\(Os \{ code: (?:5|107|108|116|121),"
    rb"| [^\r\n]{0,80}\(os error (?:5|107|108|116|121)\))"
)
_CONFIGURATION = regex(
    rb"^(?:ModuleNotFoundError|ImportError|\w{0,60}ConfigurationError|\w{0,40}ConfigError|\w{0,40}ConfigException"
    rb"|Misconfiguration(?:Exception|Error)"
    rb"|ConfigAttributeError|ConfigKeyError|MissingConfigException|\w{0,20}OptionError|UsageError)$"
)
_NETWORK = regex(
    rb"Network is unreachable|Temporary failure in name resolution|Name or service not known|Failed to resolve"
    rb"|NewConnectionError"
    rb"|ReadTimeoutError|ConnectTimeout(?:Error)?|Max retries exceeded|No route to host|ReadTimeout\b|EndpointConnectionError"
    rb"|ServiceUnavailable|(?:Server Error|HTTP Error|status code:?) 5\d\d|\b50[0234] (?:Server Error|Bad Gateway"
    rb"|Service Unavailable|Gateway)"
    rb"|check your (?:internet )?connection|Internet connection is on"
    rb"|Connection timed out|Unable to connect to endpoint"
    rb"|SSLEOFError|SlowDown\b|\b429 Client Error|\b429 Too Many Requests|IncompleteRead\b"
    # boto3's codes of errors that pass, and the first words of Google's.
    rb"|An error occurred \((?:50\d|InternalError|InternalFailure|RequestTimeout|RequestLimitExceeded|Throttling\w{0,20}"
    rb"|TooManyRequests\w{0,20})\)|: (?:429|50[0234]) (?:GET|PUT|POST|PATCH|HEAD|DELETE) https?://"
    # Arrow's codes, Rust's object_store and xet.
    rb"|AWS Error (?:NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|REQUEST_TIMEOUT|THROTTLING)\b"
    rb"|error sending request for url|CAS service error"
    rb"|We couldn't connect to '|All connection attempts failed|Server disconnected\b|Connection (?:broken|aborted)\b"
    rb"|Remote end closed connection|TimeoutError: (?:timed out|The (?:read|write|handshake) operation timed out)"
)
_OF_NETWORK = regex(
    rb"(?:^|\.)(?:ConnectionError|ProxyError|SSLError|ConnectTimeout|ProtocolError|IncompleteRead|RemoteDisconnected"
    rb"|ChunkedEncodingError|IncompleteReadError"
    rb"|Client(?:Connect\w{1,30}|Connection\w{0,20}|Payload|OS)Error|Server(?:Disconnected|Timeout)Error"
    rb"|(?:Socket|Connection)TimeoutError|FSTimeoutError)$"
    rb"|^java\.net\.(?:Connect|NoRouteToHost|Socket|SocketTimeout|UnknownHost)Exception$"
    # Names that mean something else elsewhere.
    rb"|^(?:httpx|httpcore)\.(?:\w{1,20}\.)?(?:Connect|Read|Write|Close|Network|RemoteProtocol|Transport)Error$"
    rb"|^(?:httpx|httpcore)\.(?:\w{1,20}\.)?(?:Connect|Read|Write|Pool)Timeout$"
    rb"|^botocore\.(?:\w{1,20}\.)?(?:ConnectionClosed|HTTPClient|ResponseStreaming|ProxyConnection|ReadTimeout|ConnectTimeout)Error$"
    rb"|^azure\.core\.(?:\w{1,20}\.)?Service(?:Request|Response)(?:Timeout)?Error$"
    rb"|^google\.api_core\.(?:\w{1,20}\.)?(?:TooManyRequests|ServiceUnavailable|InternalServerError|BadGateway|GatewayTimeout"
    rb"|DeadlineExceeded|RetryError)$|^grpc\.(?:\w{1,20}\.){0,3}_?(?:InactiveRpcError|MultiThreadedRendezvous|AioRpcError)$|^(?:socket\.)?(?:timeout|gaierror)$"
)
# curl's exit codes for errors that a retry may fix.
_DOWNLOAD = regex(
    rb"(?:^|[\s\]])curl: \((?:5|6|7|18|28|35|52|55|56|92)\) |^wget: unable to resolve host address "
    rb"|^(?:fatal|error): unable to access '[^'\r\n]{1,300}': (?:Could not resolve host|Failed to connect"
    rb"|The requested URL returned error: (?:429|50\d)|gnutls_handshake|Operation timed out|SSL connection timeout)"
)
# wandb's exceptions. In a traceback they end the program; without one, wandb only reports them.
_WANDB_SETUP = regex(rb"^wandb\.(?:\w{1,30}\.){0,4}(?:UsageError|AuthenticationError)$")
# A certificate that no second start makes valid.
_CERTIFICATE = regex(rb"CERTIFICATE_VERIFY_FAILED|certificate verify failed")
_NAN = regex(
    rb"loss scale already at minimum|Minimum loss scale reached|loss is (?:nan|inf)\b|Loss is (?:nan|inf)\b"
    rb"|contains? NaN|is NaN\b|[Ll]oss became (?:infinite|NaN|nan)|NaN loss (?:during training|with |at |in )"
)
_WANDB = regex(rb"\bwandb\b|api\.wandb\.ai")
_ARGUMENTS = regex(
    rb"(?<![\w./-])[\w./-]{1,200}: error: (?:unrecognized arguments|the following arguments are required|argument "
    rb"|ambiguous option"
    rb"|invalid choice|expected )|Some specified arguments are not used by the HfArgumentParser|Error: No such option"
    # The boxes of tyro and of typer.
    rb"|^\xe2\x94\x82 (?:Unrecognized options: |invalid choice '|Missing from \S{1,300}:\s|Error parsing -"
    rb"|Missing value for argument '"
    rb"|No such (?:option: |command ')|Missing (?:option|argument|parameter|command)(?: '|\.)|Invalid value(?: for |: )"
    rb"|Got unexpected extra argument|Option '[^'\r\n]{1,200}' requires an argument)"
    # Hydra, without its whole traceback.
    rb"|^Could not (?:override|append|delete) '|^Key '[^'\r\n]{1,200}' is not in struct|^Error locating target '"
)
# Of tyro and of typer, within a box.
_BOX_WORDS = (
    b"Unrecognized",
    b"invalid choice",
    b"Missing",
    b"Error parsing",
    b"No such",
    b"Invalid value",
    b"Got une",
    b"Option",
)
BOX_KEYWORDS = tuple(b"\xe2\x94\x82 " + words for words in _BOX_WORDS)
_SIGNAL_EXCEPTION = regex(rb"SignalException: Process (?P<pid>\d{1,12}) got signal: (?P<signal>\d{1,3})")
_LOADER_KILLED = regex(
    rb"DataLoader worker \(pid (?:\(s\) )?\d{1,12}\) is killed by signal: (?P<name>Killed|Segmentation fault|Aborted"
    rb"|Terminated)"
    rb"|died with <Signals\.SIG\w{1,10}: (?P<number>\d{1,3})>|terminated with signal SIG(?P<short>KILL|SEGV|ABRT|TERM)\b"
)
# torch wraps the exceptions of its workers and replicas, and prints them behind its own.
_CAUGHT_IN_WORKER = regex(rb": Caught \w{1,80} in (?:DataLoader worker process|replica|pin memory thread)")
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
# PaddlePaddle's names of signals, in an exception of its own.
_PADDLE_SIGNALS = {
    b"Segmentation fault": 11,
    b"Termination signal": 15,
    b"Process abort signal": 6,
    b"Access to an undefined portion of a memory object": 7,
    b"Erroneous arithmetic operation": 8,
    b"Illegal instruction": 4,
}
_PADDLE = regex(rb"FatalError: `(?P<what>" + b"|".join(_PADDLE_SIGNALS) + rb")` is detected by the operating system")
# A program that a signal ended, in the exception of the program that started it.
_SHELL_CODE = regex(rb"(?i:exit (?:code|status)):? (?P<code>13[2-9]|143)\b")
_RECEIVED = regex(rb"Signal (?P<signal>\d{1,3}) \(SIG[A-Z0-9]{1,10}\) received by PID")
_FAILED = regex(rb"failed \(exitcode: (?P<code>-?\d{1,5})\) local_rank: (?P<local_rank>\d{1,6}) \(pid: (?P<pid>\d{1,12})\)")
_REPORTED = regex(rb"^(?:\[[\w:-]{1,60}\]:? ?)?\s{0,8}exitcode {0,4}: (?P<code>-?\d{1,5}) \(pid: \d{1,12}\)")
# DeepSpeed's launcher, and Composer's.
_RETURNED = regex(
    rb"(?:\b[Rr]ank (?P<rank>\d{1,7}) )?"
    rb"(?:exits with return code =|crashed with exit code|\(PID \d{1,12}\) exited with code) (?P<code>-?\d{1,5})"
)
# torchelastic's and Hydra's word that a program has failed, without why.
_REPORTS = regex(rb"errors\.ChildFailedError: |^ChildFailedError:|Error executing job with overrides: ")
_RAY_DIED = regex(
    rb"[Aa] worker died or was killed while executing a task|The actor (?:died unexpectedly"
    rb"|is dead because its worker process has died)"
    rb"|Worker exit type: SYSTEM_ERROR"
    # Open MPI's, about a process on another host.
    rb"|MPI communication peer process has unexpectedly disconnected"
)
_CRASH = regex(
    rb"^(?:.{0,200}: (?:line )?\d{1,9}:? {1,8}\d{0,12} {0,8})?(?P<what>Segmentation fault|Killed(?= |\s{0,200}$)"
    rb"|Aborted(?: {1,20}\(core dumped\)|(?= {17}\S)|\s{0,200}$))"
    rb"|Fatal Python error: (?P<fatal>[^\r\n]{1,60})|\*\*\* Process received signal \*\*\*"
    rb"|Caught signal (?P<signal>\d{1,2}) \("
)
# An interpreter that does not come up: its standard library or its environment variables are wrong.
_INITIALIZATION = regex(rb"(?:config_\w{1,40}|init\w{1,40}|[Pp]y_?\w{0,20}[Ii]nit\w{0,20}): ")
_TOOL = regex(rb"lt-train: error: ")
_OTHERS_GONE = regex(rb"communication with the other ranks failed|the connection to rank 0 was lost")
_RANK_KILLED = regex(
    rb"rank (?P<rank>\d{1,7}) on (?P<node>\S{1,200}) was ended by (?P<signal>SIG(?:KILL|TERM|SEGV|BUS|ABRT|ILL|FPE|INT"
    rb"|HUP|USR1|USR2)); "
)
# Of a step that was computed twice, or of weights that several ranks share; `others` where other ranks may be the cause.
_MISCOMPUTED = regex(
    rb"rank (?P<rank>\d{1,7}) on (?P<node>\S{1,200}): (?:computed step \d{1,15} twice, and the results differ: [^;]{1,400}"
    rb"|holds at step \d{1,15} other weights than|at step \d{1,15} the weights of ranks that share them differ)"
    rb"(?P<others>; so do)?"
)
# Signals that ask a process to end. SIGABRT is missing, because a watchdog ends its own process with it.
_ASKED = frozenset({signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP})


def exception(line: Line) -> Record | None:
    """Parse the last line of a traceback."""
    match = _EXCEPTION.match(line.text, line.body) or _UNCAUGHT.search(line.text)
    # An exception that quotes a traceback has its reason at the end of the traceback.
    if match is None or line.text.startswith(b"Traceback (most recent call last)", match.end()):
        return None
    return raised(line, match["name"], match.start())


def raised(line: Line, name: bytes, begin: int, message: int | None = None) -> Record | None:
    """Build the fault of an exception whose class `name` is at `begin` of its line, and whose message is at `message`."""
    if (signalled := _SIGNAL_EXCEPTION.search(line.text)) is not None:
        return fault(line, "killed", "cascade", "warning", signal=int(signalled["signal"]))
    if name.endswith(b"ChildFailedError"):
        return None
    if name in (b"KeyboardInterrupt", b"InterruptException"):
        return fault(line, "killed", "unknown", "warning", signal=2)
    if (worker := _LOADER_KILLED.search(line.text)) is not None:
        return killed(line, int(worker["number"]) if worker["number"] else _SIGNAL_NAMES[worker["name"] or worker["short"]])
    if (paddle := _PADDLE.search(line.text, begin)) is not None:
        return killed(line, _PADDLE_SIGNALS[paddle["what"]])
    if (code := _SHELL_CODE.search(line.text, begin)) is not None:
        return ended(line, int(code["code"]))
    class_name = name.decode()
    if name.endswith(b"ResourceExhaustedError"):
        return fault(line, "out-of-memory", "root", "critical", message)
    if message is not None and _WANDB_SETUP.match(name) is not None:
        return fault(line, "configuration", "root", "critical", message, exception=class_name)
    if message is not None and name.startswith(b"wandb.") and name.endswith(b".CommError"):
        return fault(line, "network", "unknown", "critical", message, exception=class_name)
    if _WANDB.search(line.text, begin) is not None:
        return fault(line, "traceback", "unknown", "warning", message, exception=class_name)
    is_refused = _CERTIFICATE.search(line.text, begin) is not None
    if is_refused or _CONFIGURATION.match(name.rpartition(b".")[2]) is not None:
        return fault(line, "configuration", "root", "critical", message, exception=class_name)
    if name.endswith(b"FloatingPointError") or _NAN.search(line.text, begin) is not None:
        return fault(line, "nan", "root", "critical", message, exception=class_name)
    if _OF_NETWORK.search(name) is not None or _NETWORK.search(line.text, begin) is not None:
        return fault(line, "network", "root", "critical", message, exception=class_name)
    if _CAUGHT_IN_WORKER.search(line.text, begin) is not None:
        # The worker's own exception follows.
        return fault(line, "traceback", "unknown", "critical", message, exception=class_name)
    is_gone = _GONE.search(line.text, begin) is not None
    return fault(line, "traceback", "cascade" if is_gone else "root", "critical", message, exception=class_name)


def inner_cause(line: Line) -> Record | None:
    """Parse the cause of a Java exception. It is no failure without the exception, which a program may log and survive."""
    match = _CAUSED_BY.match(line.text) or _CAUSED_BY.match(line.text[line.body :])
    if match is None:
        return None
    begin = line.text.find(match["name"])
    record = raised(line, match["name"], begin, begin)
    return None if record is None else {**record, "severity": "warning", "is_inner_cause": True}


def not_a_number(line: Line) -> Record | None:
    """A trainer that ended itself, because its loss or its loss scale was no number any more."""
    match = _NAN.search(line.text)
    is_error = match is not None and (b"Error: " in line.text or b"Exception: " in line.text or b"Exiting" in line.text)
    return fault(line, "nan", "root", "critical") if is_error else None


def tracker(line: Line) -> Record | None:
    """wandb that could not be reached at the start, which ends the program that did not expect it."""
    is_error = b"ERROR Run initialization has timed out" in line.text
    return fault(line, "network", "unknown", "critical") if is_error else None


def download(line: Line) -> Record | None:
    """curl, wget or git that did not reach a server, in a script that may go on without."""
    return fault(line, "network", "unknown", "critical") if _DOWNLOAD.search(line.text) is not None else None


def arguments(line: Line) -> Record | None:
    """A command line that its program does not take, as argparse and click say it."""
    match = _ARGUMENTS.search(line.text) or _ARGUMENTS.search(line.text[line.body :])
    return fault(line, "configuration", "root", "critical", exit_code=2) if match is not None else None


def tool_error(line: Line) -> Record | None:
    match = _TOOL.search(line.text)
    if match is None:
        return None
    if (ended := _RANK_KILLED.match(line.text, match.end())) is not None:
        number = int(signal.Signals[ended["signal"].decode()])
        cause = "cascade" if number == signal.SIGTERM else "root"
        node = ended["node"].decode(errors="replace")
        return fault(line, "killed", cause, "critical", match.start(), rank=int(ended["rank"]), node=node, signal=number)
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
        return killed(line, int(match["signal"]))
    if (match := _FAILED.search(text)) is not None:
        return ended(line, int(match["code"]), local_rank=int(match["local_rank"]))
    if (match := _REPORTED.search(text) or _RETURNED.search(text)) is not None:
        rank = match.groupdict().get("rank")
        return ended(line, int(match["code"]), **({"rank": int(rank)} if rank else {})) if int(match["code"]) else None
    if _REPORTS.search(text, line.body) is not None:
        return fault(line, "exit", "cascade", "critical")
    if (match := _RAY_DIED.search(text)) is not None:
        # Somebody asked the worker to end: the driver, a preempted node, a user.
        return killed(line, 15) if b"The process receives a SIGTERM" in text else fault(line, "killed", "unknown", "critical")
    return _crash(line)


def _crash(line: Line) -> Record | None:
    match = _CRASH.search(line.text) or _CRASH.search(line.text[line.body :])
    if match is None:
        return None
    if match["what"] == b"Killed":
        return killed(line, 9)
    is_aborted = match["fatal"] is not None and match["fatal"].startswith(b"Aborted")
    if is_aborted or (match["what"] or b"").startswith(b"Aborted"):
        return killed(line, 6)
    if match["fatal"] is not None and _INITIALIZATION.match(match["fatal"]) is not None:
        return fault(line, "configuration", "root", "critical")
    number = 11 if match["what"] else int(match["signal"]) if match["signal"] else None
    number = 11 if match["fatal"] is not None and match["fatal"].startswith(b"Segmentation") else number
    return fault(line, "killed", "root", "critical", signal=number or 6)


def ended(line: Line, code: int, **fields: Any) -> Record:
    """A process with an exit code as Python counts it (below 0: a signal), or as a shell does (above 128)."""
    if code < 0 or 128 < code < 160:
        return killed(line, -code if code < 0 else code - 128, **fields)
    return fault(line, "exit", "cascade", "critical", exit_code=code, **fields)


def killed(line: Line, number: int, **fields: Any) -> Record:
    """Build the fault of a process that a signal ended."""
    return fault(line, "killed", "cascade" if number in _ASKED else "unknown", "critical", signal=number, **fields)
