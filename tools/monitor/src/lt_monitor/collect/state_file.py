"""State files: what a pass left for the next one, whole and nobody else's.

A state decides which events are new and which findings are known. A file that is empty, cut off or changed would make it forget
or invent some, in silence; one that another user planted, or could write, would make it what that user wants. So a state ends
with a digest of itself, and is read only where this user alone could have written it. Any other file is an error, never an empty
state.
"""

import hashlib
import os
import stat
from typing import Any

import orjson

from lt_shared.console import BadData, CannotCreate
from lt_shared.files import ownership
from lt_shared.files.local_files import creating

STATE_VERSION = 3
# What is in a state came from logs, which may be private.
MODE = 0o600
_DIGEST_KEY = b',"sha256":"'
_END = b'"}\n'
_TAIL_BYTES = len(_DIGEST_KEY) + 64 + len(_END)


def content(kind: str, state: dict[str, Any]) -> bytes:
    """The file of a state."""
    body = orjson.dumps({"v": STATE_VERSION, "kind": kind, **state})[:-1]
    return body + _DIGEST_KEY + hashlib.sha256(body).hexdigest().encode() + _END


def read(path: str, kind: str) -> dict[str, Any] | None:
    """The state in the file `path`, None when there is no such file.

    Raises: BadData for what is not a whole state of `kind`; CannotCreate for a link, what is not a file, and what another user
    owns or can write.
    """
    try:
        with creating(path), open(_opened(path), "rb") as file:
            found = file.read()
    except _Missing:
        return None
    if not found:
        raise _not_a_state(path, kind, "it is empty")
    body, tail = found[:-_TAIL_BYTES], found[-_TAIL_BYTES:]
    if tail != _DIGEST_KEY + hashlib.sha256(body).hexdigest().encode() + _END:
        raise _not_a_state(path, kind, "it was changed or cut off, or written by another version or another program")
    state: dict[str, Any] = orjson.loads(found)
    if (state.get("v"), state.get("kind")) != (STATE_VERSION, f"{kind}-state"):
        raise _not_a_state(path, kind, "written by another version or another command")
    return state


class _Missing(Exception):
    pass


def _opened(path: str) -> int:
    """Open without following a link and without waiting for the other end of a pipe."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        raise _Missing from None
    # A link cannot be opened with O_NOFOLLOW, and says so less clearly.
    if stat.S_ISLNK(status.st_mode):
        raise _not_own(path, "is a symbolic link")
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    status = os.fstat(descriptor)
    reason = ownership.reason_for_distrust(status, os.path.dirname(path) or ".")
    if reason is None and stat.S_ISDIR(status.st_mode):
        reason = "is a directory"
    if reason is None:
        return descriptor
    os.close(descriptor)
    raise _not_own(path, reason)


def _not_own(path: str, reason: str) -> CannotCreate:
    return CannotCreate(f"{path}: {reason}", "delete it to start over, or choose another file in a directory of your own")


def _not_a_state(path: str, kind: str, reason: str) -> BadData:
    return BadData(f"{path}: not a state of lt-monitor {kind}: {reason}", "delete it to read every log from its beginning")
