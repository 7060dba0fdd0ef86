"""The directory where compiled functions, vocabularies and passed self-checks are kept between runs.

What numba keeps is a pickle: a user who can write to the directory runs code in the next process that reads it. So the
directory and every directory above it must belong to this user or root, and nobody else may write to them. A relative path is
not used, because the current directory may be anyone's. Without such a directory nothing is kept, and every run compiles again;
no later run would find a new directory in /tmp. The directory is named by a hash of the whole package's source, so that neither
an upgrade nor a changed intrinsic ever runs old code.
"""

import contextlib
import functools
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from lt_shared.console import warn
from lt_shared.files import ownership

NAME = "lt-preprocess"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_ENTER = stat.S_IXGRP | stat.S_IXOTH


@functools.cache
def cache_directory() -> Path | None:
    """The directory of the cache, or None when no candidate is writable and of this user alone."""
    for base in _bases():
        directory = base.resolve() / NAME / source_digest()[:16]
        try:
            reason = _reason_against(directory)
        except OSError:
            continue
        if reason is not None:
            warn(f"{directory.parent}: not used as a cache, it may hold code of others: {reason}")
        elif os.access(directory, os.W_OK):
            return directory
    return None


def _bases() -> Iterator[Path]:
    for variable in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        base = os.environ.get(variable)
        if base and os.path.isabs(base):
            yield Path(base)
        elif base:
            warn(f"{variable} is {base}, which is relative: not used as a cache, it may hold code of others")
    # expanduser returns "~" for a user without HOME and without an entry in the list of users.
    home = os.path.expanduser("~/.cache")
    if os.path.isabs(home):
        yield Path(home)


def _reason_against(directory: Path) -> str | None:
    """Why others could have put something into the directory, which is made if there is none; None when nobody could."""
    above = directory.parent
    _make_private(above)
    status = os.lstat(above)
    if stat.S_ISLNK(status.st_mode):
        return "it is a symbolic link"
    if status.st_uid == os.geteuid() and status.st_mode & _OTHERS_WRITE:
        # Earlier versions made it with the modes of the umask. Below it nothing of theirs is used.
        above.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS_WRITE)
    reason = ownership.reason_for_distrust_of_path(above)
    if reason is not None:
        return reason
    _make_private(directory)
    status = os.lstat(directory)
    if stat.S_ISLNK(status.st_mode):
        return f"{directory.name} is a symbolic link"
    return ownership.reason_for_distrust_of_path(directory) or _reason_against_content(directory, status)


def _make_private(directory: Path) -> None:
    """Make a directory, and those above it, for this user alone."""
    if not os.path.lexists(directory):
        _make_private(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)


def _reason_against_content(directory: Path, status: os.stat_result) -> str | None:
    """Return why the content of `directory` is not trusted: other users may have written it before the directory was private.

    File modes matter only if other users can enter the directory.
    """
    is_closed = not status.st_mode & _OTHERS_ENTER
    for parent, folders, files in os.walk(directory):
        for name in (*folders, *files):
            path = os.path.join(parent, name)
            # Another process of this user may just have replaced it.
            with contextlib.suppress(FileNotFoundError):
                entry_status = os.lstat(path)
                reason = (
                    ownership.belongs_to_other(entry_status, parent)
                    if is_closed
                    else ownership.reason_for_distrust(entry_status, parent)
                )
                if reason is not None or stat.S_ISLNK(entry_status.st_mode):
                    return f"{path} {reason or 'is a symbolic link'}"
    return None


def source_digest() -> str:
    """A hash of the name and content of every source file of this package; 80 files take two milliseconds."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
