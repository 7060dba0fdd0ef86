"""Read and encode state files, with which one pass continues the work of the pass before.

A state decides which events are new and which findings were reported. From an empty, cut off or changed file, events or findings
would silently be lost or repeated; a file that another user can write could say anything. So a state file ends with a digest of
itself, and is read only if no other user can have written it. Any other file is an error, never an empty state.
"""

import dataclasses
import hashlib
import json
import os
import stat
from typing import Any

import orjson

from lt_shared.console import BadData, CannotCreate
from lt_shared.files import ownership
from lt_shared.files.local_files import creating

STATE_VERSION = 3
# The content comes from logs, which may be private.
MODE = 0o600
_DIGEST_KEY = b',"sha256":"'
_END = b'"}\n'
_TAIL_BYTES = len(_DIGEST_KEY) + 64 + len(_END)


def content(kind: str, state: dict[str, Any]) -> bytes:
    """Encode a state file."""
    record = {"v": STATE_VERSION, "kind": kind, **state}
    try:
        body = orjson.dumps(record)[:-1]
    except TypeError:
        # orjson refuses the surrogates that stand for bytes of a path that are not UTF-8.
        body = json.dumps(record, separators=(",", ":"), default=_fields).encode()[:-1]
    return body + _DIGEST_KEY + hashlib.sha256(body).hexdigest().encode() + _END


def _fields(one: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, as orjson encodes it."""
    return {field.name: getattr(one, field.name) for field in dataclasses.fields(one) if not field.name.startswith("_")}


def read(path: str, kind: str) -> dict[str, Any] | None:
    """Read the state in the file `path`; return None if there is no such file.

    Raises: BadData if the file is not a complete state of `kind`; CannotCreate for a link, for anything but a regular file, and
    for a file that another user owns or can write.
    """
    try:
        with creating(path), open(_opened(path), "rb") as file:
            content_bytes = file.read()
    except _Missing:
        return None
    if not content_bytes:
        raise _not_a_state(path, kind, "it is empty")
    body, tail = content_bytes[:-_TAIL_BYTES], content_bytes[-_TAIL_BYTES:]
    if tail != _DIGEST_KEY + hashlib.sha256(body).hexdigest().encode() + _END:
        raise _not_a_state(path, kind, "it was changed or cut off, or written by another version or another program")
    try:
        state: dict[str, Any] = orjson.loads(content_bytes)
    except orjson.JSONDecodeError:
        state = json.loads(content_bytes)
    if (state.get("v"), state.get("kind")) != (STATE_VERSION, f"{kind}-state"):
        raise _not_a_state(path, kind, "written by another version or another command")
    return state


class _Missing(Exception):
    pass


def _opened(path: str) -> int:
    """Open `path` without following a link and without waiting for the other end of a pipe."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        raise _Missing from None
    # O_NOFOLLOW refuses a link, too, but with a less clear error.
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
