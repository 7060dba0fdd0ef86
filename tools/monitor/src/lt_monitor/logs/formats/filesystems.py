"""Filesystems that fail: network mounts that have gone, disks with errors, and what their clients in the kernel say.

The error numbers are Linux's. Some concern sockets as often as files, so they count only with a path. A filesystem that is full
is in `process_exits`, shared memory in `memory`.
"""

import re

from lt_monitor.events.records import Record
from lt_monitor.logs.line_parsers import fault, is_warning, regex
from lt_monitor.logs.lines import Line

# EIO, ENOLCK, EBADE, ENODATA, EPROTO, EBADMSG, ESHUTDOWN, EHOSTDOWN, ESTALE, EUCLEAN, EREMOTEIO
_ERRORS = frozenset({5, 37, 52, 61, 71, 74, 108, 112, 116, 117, 121})
# ENODEV, ENETUNREACH, ECONNABORTED, ENOTCONN, ETIMEDOUT, EHOSTUNREACH
_ERRORS_ON_PATHS = frozenset({19, 101, 103, 107, 110, 113})
_NOT_CONNECTED, _READ_ONLY = 107, 30
# The kernel's own numbers, which no program should see (EBADHANDLE 521, ESERVERFAULT 526).
_KERNEL_ERRORS = range(512, 532)
_NUMBER = regex(
    rb"\[Errno (?P<errno>\d{1,3})\]|\(os error (?P<os>\d{1,3})\)|\berrno = (?P<hdf5>\d{1,3}),|\bOs \{ code: (?P<rust>\d{1,3}),"
)
_TEXTS = {
    b"Input/output error": 5,
    b"No locks available": 37,
    b"Stale file handle": 116,
    b"Stale NFS file handle": 116,
    b"Structure needs cleaning": 117,
    b"Remote I/O error": 121,
    b"Cannot send after transport endpoint shutdown": 108,
    b"Transport endpoint is not connected": _NOT_CONNECTED,
    b"Read-only file system": _READ_ONLY,
}
_TEXT = regex(rb": (?P<text>" + b"|".join(map(re.escape, _TEXTS)) + rb")\b")
_PATH = regex(rb"['\"`]?(?<![\w./])(?P<path>/[\w.@+~%=-]{1,255}(?:/[\w.@+~%=-]{1,255}){0,40})")
_PSEUDO = (b"/dev/", b"/proc/", b"/sys/")
_FRAME = regex(rb"\s{1,40}File \"")
_CLIENT = regex(
    rb"LustreError: .{1,200}This client was evicted by|nfs: server \S{1,255} not responding, timed out"
    rb"|GPFS: .{0,40}(?:Lost membership in cluster|[Ff]ile system unmounted due to)|mmfs: .{0,60}(?:lost membership|panicked)"
    rb"|ceph: mds\d{1,4} (?:session (?:lost|blocklisted|blacklisted)|reconnect denied)|ceph: .{1,100}blocklisted"
)
# An error of the node's own disk.
_DISK = regex(
    rb"EXT4-fs error \(device|EXT4-fs \(\S{1,60}\): Remounting filesystem read-only|EXT4-fs \(\S{1,60}\): I/O error"
    rb"|XFS \(\S{1,60}\): (?:metadata I/O error|log I/O error|[Ff]ilesystem has been shut down|Corruption )"
    rb"|(?:[Bb]uffer I/O error on dev|I/O error, dev) (?!fd|sr|loop)\w"
    rb"|nvme nvme\d{1,3}: (?:controller is down|Removing after probe failure|Device not ready)"
)


def failed(line: Line) -> Record | None:
    """A system call on a file that failed because of the filesystem, with the path where the line has one."""
    text = line.text
    match = _NUMBER.search(text) or _TEXT.search(text)
    if match is None or is_warning(line, match.start()) or _FRAME.match(text, line.body):
        return None
    number = _TEXTS[match["text"]] if match.lastgroup == "text" else int(match[match.lastgroup or 0])
    path = _path(text, match, line.body)
    if path is not None and path.startswith(_PSEUDO):
        return None
    named = path.decode() if path is not None else None
    if number == _READ_ONLY:
        return fault(line, "configuration", "root", "critical", path=named)
    if number == _NOT_CONNECTED and path is None:
        return fault(line, "filesystem", "root", "critical") if match.lastgroup != "text" else None
    is_error = number in _ERRORS or number in _KERNEL_ERRORS or (number in _ERRORS_ON_PATHS and path is not None)
    return fault(line, "filesystem", "root", "critical", path=named) if is_error else None


def _path(text: bytes, match: re.Match[bytes], begin: int) -> bytes | None:
    """The path behind the error, as Python puts it, else the last one before it, as shells and core utilities do."""
    if (behind := _PATH.search(text, match.end())) is not None:
        return behind["path"]
    before = [path["path"] for path in _PATH.finditer(text, begin, match.start())]
    return before[-1] if before else None


def client(line: Line) -> Record | None:
    """Parse the kernel's report about a mount or a disk."""
    if _CLIENT.search(line.text) is not None:
        return fault(line, "filesystem", "root", "critical")
    if _DISK.search(line.text) is not None:
        return fault(line, "filesystem", "root", "critical", action="isolate")
    return None
