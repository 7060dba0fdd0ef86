"""NCCL: time-outs, errors, and whether it found EFA.

A time-out names a victim: every rank waits for one that is late or dead. The rank with the lowest last completed work is the
first suspect, so those numbers are kept. Without EFA, NCCL falls back to sockets, which are ten to a hundred times slower.
"""

from lt_monitor.events.records import Record
from lt_monitor.logs.line_parsers import fault, is_warning, note, regex
from lt_monitor.logs.lines import Line

_RANK = regex(rb"\bRank (?P<rank>\d{1,6})\]")
_TIMEOUT = regex(
    rb"collective operation timeout(?:: Work\w{1,20}\((?:SeqNum=(?P<sequence>\d{1,15}), )?OpType=(?P<operation>\w{1,40})"
    rb"(?:.{0,400}?ran for (?P<ran>\d{1,15}) milliseconds)?|\s*$)"
)
_STATUS = regex(
    rb"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,15}), last completed (?:NCCL )?work: (?P<completed>-?\d{1,15})"
)
# torch 2.2 to 2.11: messages of the watchdog's monitor before and after it dumps its records; a terminal may have broken the line
# at any place.
_HEARTBEAT = regex(
    rb"[Hh]eartbeat monitor timed out|terminated? (?:the )?process due to watchdog timeout"
    rb"|watchdog got stuck for \d{1,9} seconds"
    rb"|no heartbeat of its watchdog|attempting to dump debug info, due to|watchdog hang\b|NCCL_BLOCKING_WAIT.{0,40}timed out"
    rb"|[Rr]eceived a (?:global|dump|timeout) (?:timeout|signal).{0,80}from"
    rb"|[Oo]bserved flight recorder dump signal from another rank"
    rb"|possible GIL induced hang"
    rb"|failed to pass monitoredBarrier|Timed out waiting \d{1,12}ms for (?:recv|send) operation"
)
_MISMATCH = regex(rb"Detected mismatch between collectives on ranks")
_RENDEZVOUS = regex(
    rb"Rendezvous(?:Timeout|Connection|Closed|State|Graceful\w{1,20})Error|DistNetworkError|DistStoreError"
    rb"|client socket has timed out after"
    rb"|client socket has failed to connect to any|Timed out after \d{1,9} seconds waiting for clients"
    rb"|wait timeout after \d{1,12}ms"
    rb"|Address already in use|EADDRINUSE|failed to recv, got \d{1,9} bytes|TCPStore.{0,200}(?:timed? ?out|Broken pipe|reset)"
    rb"|[Ss]ocket [Tt]imeout|Gloo connectFullMesh failed|mesh is unhealthy with uneven heartbeats"
)
# The watchdog's text after the error or the time-out.
_ENDS = regex(rb"Some NCCL operations have failed or timed out|taking the entire process down")
_ERROR = regex(
    rb"nccl(?:SystemError|RemoteError|InternalError|UnhandledCudaError|InvalidUsage|InvalidArgument)"
    rb"|NCCL (?:error(?: in)?|Error \d{1,2}):|\bTest NCCL failure \S{1,200}:\d"
    rb"|NCCL WARN "
)
# A network card gave up: 12 and 13 after all retries, others as the connection was torn down.
_COMPLETION = regex(
    rb"NET/(?:IB|OFI|MLX\w{0,10}|Socket)\b[^\r\n]{0,200}?(?:Got completion from peer [^\r\n]{1,200}? (?:with (?:error"
    rb"|status)|status)[ =]"
    rb"|[Cc]ompletion with error|Request [^\r\n]{1,80} completed with error)"
    rb"|Got completion from peer [^\r\n]{1,200}?status=\S{0,40}?\d"
    rb"|IBV_WC_(?:RETRY_EXC|RNR_RETRY_EXC|REM_\w{1,12}|LOC_\w{1,12}|FATAL)_ERR|ibv_poll_cq\(\) failed"
    rb"|transport retry counter exceeded"
    # UCX and Open MPI, whose processes the error ends.
    rb"|(?:Transport|RNR) retry count exceeded|InfiniBand retry count between two MPI processes has been exceeded"
    rb"|ib_mlx5_log\.c:\d{1,6} {1,4}(?:FATAL: )?(?:Error on |Remote |Local )[^\r\n]{1,200}"
    rb"|UCX  (?:ERROR|FATAL) [^\r\n]{0,200}?(?:[Cc]onnection (?:reset|refused)|[Tt]imed? ?out|[Uu]nreachable|[Ee]ndpoint timeout)"
)
COMPLETION_KEYWORDS = (
    *(b"Got completion from", b"ompletion with error", b"completed with error", b"IBV_WC_", b"poll_cq() failed"),
    *(b"retry counter exceeded", b"ransport retry count", b"RNR retry count", b"nfiniBand retry count", b"ib_mlx5_log"),
    *(b"UCX  ERROR", b"UCX  FATAL"),
)
_GROUP = regex(rb"\[PG (?:ID )?(?P<group>\d{1,6})\b")
_PROVIDER = regex(rb"NET/OFI [Ss]elected [Pp]rovider is (?P<provider>[\w;-]{1,40})")
_SOCKET = regex(rb"NET/Socket : Using (?P<interfaces>.{1,200})")
_FROM_RANK = regex(rb"timeout from {1,3}rank {1,3}(?P<rank>\d{1,6})\b")


def timeout(line: Line) -> Record | None:
    text = line.text
    if b"Work update periodically" in text:
        return None
    rank = _RANK.search(text)
    group = _GROUP.search(text)
    fields = {"rank": int(rank["rank"]) if rank else None, "process_group": int(group["group"]) if group else None}
    if (match := _TIMEOUT.search(text)) is not None:
        ran = int(match["ran"]) / 1000 if match["ran"] else None
        return fault(
            line,
            "nccl-timeout",
            "cascade",
            "critical",
            **fields,
            sequence=int(match["sequence"]) if match["sequence"] else None,
            operation=match["operation"].decode() if match["operation"] else None,
            seconds=ran,
        )
    if (match := _STATUS.search(text)) is not None:
        first = _FROM_RANK.search(text)
        return fault(
            line,
            "nccl-timeout",
            "cascade",
            "critical",
            **fields,
            last_enqueued=int(match["enqueued"]),
            last_completed=int(match["completed"]),
            reported_by=int(first["rank"]) if first else None,
        )
    match = _HEARTBEAT.search(text)
    if match is None or is_warning(line, match.start()):
        return None
    return fault(line, "nccl-timeout", "cascade", "critical", **fields)


def mismatch(line: Line) -> Record | None:
    """Ranks that are in different collectives, which TORCH_DISTRIBUTED_DEBUG=DETAIL finds before they wait for ever."""
    match = _MISMATCH.search(line.text)
    return None if match is None else fault(line, "collective-mismatch", "unknown", "critical")


def rendezvous(line: Line) -> Record | None:
    """Processes that did not find each other, or lost the one that they meet at: a consequence of what ended it."""
    match = _RENDEZVOUS.search(line.text)
    if match is None or is_warning(line, match.start()):
        return None
    return fault(line, "rendezvous", "cascade", "critical")


def duplicate(line: Line) -> Record | None:
    """Two ranks that were given one GPU."""
    return fault(line, "configuration", "root", "critical") if b"Duplicate GPU detected" in line.text else None


def error(line: Line) -> Record | None:
    if _ENDS.search(line.text) is not None:
        return fault(line, "nccl-error", "cascade", "critical")
    if (match := _COMPLETION.search(line.text)) is not None and not is_warning(line, match.start()):
        return fault(line, "nccl-error", "unknown", "critical", action="again")
    match = _ERROR.search(line.text)
    # A failed CUDA call inside NCCL is a CUDA error.
    if match is None or b"Cuda failure" in line.text or is_warning(line, match.start()):
        return None
    rank = _RANK.search(line.text)
    severity = "warning" if match[0].startswith(b"NCCL WARN") else "critical"
    # A remote error is another process's end.
    cause = "cascade" if match[0] == b"ncclRemoteError" else "unknown"
    return fault(line, "nccl-error", cause, severity, rank=int(rank["rank"]) if rank else None)


def network(line: Line) -> Record | None:
    if (match := _PROVIDER.search(line.text)) is not None:
        provider = match["provider"].decode()
        return note(line, "efa" if "efa" in provider.lower() else "socket", {"provider": provider}, match.start())
    if (match := _SOCKET.search(line.text)) is not None:
        return note(line, "socket", {"interfaces": match["interfaces"].decode(errors="replace")}, match.start())
    return None
