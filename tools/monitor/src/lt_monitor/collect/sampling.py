"""Build the records of machine samples, which come from programs instead of logs."""

import datetime
import os
import socket
import sys

from lt_monitor.events import records
from lt_monitor.events.records import MESSAGE_CHARACTERS, Record
from lt_shared.console import note
from lt_shared.files import storage

STANDARD_INPUT = "-"
MAXIMUM_BYTES = 64 << 20


def machine_name() -> str:
    """Return Slurm's name of this machine, or its host name outside Slurm."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]


def record(kind: str, file: str, offset: int = 0, **details: object) -> Record:
    run = details.pop("run", None) or machine_name()
    time = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    return {
        "v": records.VERSION, "kind": kind, "run": run, "time": time, **details, "src": {"file": file, "offset": offset}
    }  # fmt: skip


def fault(file: str, name: str, severity: str, message: str, offset: int = 0, **details: object) -> Record:
    return record(
        "fault", file, offset, node=machine_name(), fault=name, cause="root", severity=severity,
        message=message[:MESSAGE_CHARACTERS], **details,
    )  # fmt: skip


def missing(file: str, message: str) -> Record:
    """Report a failed sample on stderr, and return it as a note event."""
    note(message)
    return record("note", file, node=machine_name(), note="missing", message=message[:MESSAGE_CHARACTERS])


def read_text(path: str) -> str:
    """Read a program's saved output (`-` is stdin). Raises NoInput when there is no such file."""
    if path == STANDARD_INPUT:
        data = sys.stdin.buffer.read(MAXIMUM_BYTES)
    else:
        with storage.open_read(path) as file:
            data = file.read(MAXIMUM_BYTES)
    return data.decode(errors="replace")
