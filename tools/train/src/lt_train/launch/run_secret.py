"""The secret that lets the launchers of a run know each other: SAVE/.secret, which only its owner can read.

The first node draws it once. In a store it is an object beside the checkpoints, so whoever may read the run knows it.
"""

import contextlib
import os
import re
import secrets
import stat
import time

from lt_shared.console import BadConfig, Unavailable
from lt_shared.files import storage

FILE = ".secret"
FORM = re.compile(rb"[0-9a-f]{64}")
POLL_SECONDS = 0.1


def read(save: str, is_first: bool, wait_seconds: float) -> bytes:
    """Return the secret of the run in `save`. The first node creates it; other nodes wait for it up to `wait_seconds`.

    Raises Unavailable if it does not come, and BadConfig if other users could know it.
    """
    path, deadline = os.path.join(save, FILE), time.monotonic() + wait_seconds
    if is_first:
        _create(path)
    while not FORM.fullmatch(secret := _read(path)):
        if time.monotonic() > deadline:
            raise Unavailable(f"{path}: no secret of the run is there", "see whether all nodes have the same SAVE")
        time.sleep(POLL_SECONDS)
    return secret


def _create(path: str) -> None:
    content = secrets.token_hex(32).encode()
    if storage.is_remote(path):
        if not storage.exists(path):
            storage.write_bytes(path, content)
        return
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)


def _read(path: str) -> bytes:
    """Return the content of the file, empty while there is none."""
    if storage.is_remote(path):
        return storage.read_bytes(path) if storage.exists(path) else b""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise BadConfig(f"{path}: {error.strerror}", "delete it: the next start draws another secret") from None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise BadConfig(f"{path}: other users could know it", "delete it: the next start draws another secret")
        return file.read(1024)
