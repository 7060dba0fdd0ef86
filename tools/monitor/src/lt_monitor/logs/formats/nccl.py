"""NCCL: time-outs, errors, and whether it found EFA.

A time-out names a victim: every rank waits for one that is late or dead. The rank with the lowest last completed work is the
first suspect, so those numbers are kept. Without EFA, NCCL falls back to sockets, which are ten to a hundred times slower.
"""

import re

from lt_monitor.events.records import Record
from lt_monitor.logs.formats import fault, note
from lt_monitor.logs.lines import Line

_RANK = re.compile(rb"\bRank (?P<rank>\d{1,6})\]")
_TIMEOUT = re.compile(
    rb"collective operation timeout: WorkNCCL\(SeqNum=(?P<sequence>\d{1,15}), OpType=(?P<operation>\w{1,40})"
    rb"(?:.{0,400}?ran for (?P<ran>\d{1,15}) milliseconds)?"
)
_STATUS = re.compile(
    rb"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d{1,15}), last completed (?:NCCL )?work: (?P<completed>-?\d{1,15})"
)
_HEARTBEAT = re.compile(rb"[Hh]eartbeat monitor timed out|terminated? (?:the )?process due to watchdog timeout")
_ERROR = re.compile(
    rb"nccl(?:SystemError|RemoteError|InternalError|UnhandledCudaError|InvalidUsage|InvalidArgument)|NCCL error in:|NCCL WARN "
)
_PROVIDER = re.compile(rb"NET/OFI [Ss]elected [Pp]rovider is (?P<provider>[\w;-]{1,40})")
_SOCKET = re.compile(rb"NET/Socket : Using (?P<interfaces>.{1,200})")
_FROM_RANK = re.compile(rb"timeout from {1,3}rank {1,3}(?P<rank>\d{1,6})\b")


def timeout(line: Line) -> Record | None:
    text = line.text
    if b"Work update periodically" in text:
        return None
    rank = _RANK.search(text)
    fields = {"rank": int(rank["rank"]) if rank else None}
    if (match := _TIMEOUT.search(text)) is not None:
        ran = int(match["ran"]) / 1000 if match["ran"] else None
        return fault(
            line,
            "nccl-timeout",
            "cascade",
            "critical",
            **fields,
            sequence=int(match["sequence"]),
            operation=match["operation"].decode(),
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
    return fault(line, "nccl-timeout", "cascade", "critical", **fields) if _HEARTBEAT.search(text) is not None else None


def error(line: Line) -> Record | None:
    match = _ERROR.search(line.text)
    if match is None:
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
