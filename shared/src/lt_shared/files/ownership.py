"""Check that a file or directory was made by the same user and is writable by nobody else.

In a directory that others can write to, anyone can plant a half-written output, a journal or a cache under the name that a tool
will look for. A tool uses such a file only if this process could have made it. On most filesystems this means that the owner
is the effective user and the mode lets no one else write. Some mounts change owners or modes (NFS with root_squash, EFS access
points, filesystems without modes); there it is compared with a file that is made for the purpose, which costs one creation and
only where the first comparison fails.
"""

import contextlib
import errno
import os
import stat
from pathlib import Path

from lt_shared.console import BadData, CannotCreate

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# As Linux's.
_MOST_LINKS = 40


def belongs_to_other(status: os.stat_result, directory: str | os.PathLike[str]) -> str | None:
    """Who else owns a file found in `directory`, in words, or None when this user would own a file made there."""
    if status.st_uid == os.geteuid() or status.st_uid == getattr(_new_file(directory), "st_uid", None):
        return None
    return f"belongs to another user (uid {status.st_uid})"


def check_owner(path: str | os.PathLike[str]) -> None:
    """Raise CannotCreate if another user owns the file or link at `path`, which would be replaced."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        other = belongs_to_other(os.lstat(path), os.path.dirname(path) or ".")
        if other is not None:
            raise CannotCreate(f"{path}: {other}", "choose another output, or remove it if it is not needed")


def check_link(path: str | os.PathLike[str]) -> None:
    """Raise BadData if another user made a link on the way to `path` and does not own its target; OSError without such a path.

    He may not be able to read that file, and would have it read, and copied into an output, by whoever can. A blob of the Hub's
    cache may belong to a third user (`_may_link`).
    """
    _followed(os.fspath(path))


def open_checked(path: str, flags: int = os.O_RDONLY | os.O_CLOEXEC) -> int:
    """`os.open` for reading, with `check_link`; `open(path, "rb", opener=open_checked)` makes a file of it.

    Another user may exchange links and files while the path is opened. Links are therefore checked before, so that a foreign
    target is not even opened, and again after; the path must then lead to the opened file. Raises BadData if it does not.
    """
    check_link(path)
    descriptor = os.open(path, flags)
    try:
        _check_opened(path, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_opened(path: str, descriptor: int) -> None:
    followed, is_exposed = _followed(path)
    if not is_exposed:
        return
    try:
        opened = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return
    if opened.startswith("/") and opened.removesuffix(" (deleted)") != followed:
        raise BadData(f"{path}: was exchanged while it was opened", "run the command again; look who writes there")


def _followed(path: str) -> tuple[str, bool]:
    """Resolve the links in a path, and tell whether another user could exchange a component. Raises as `check_link`."""
    components = path.split("/")[::-1]
    followed = "" if path.startswith("/") else os.getcwd().rstrip("/")
    is_exposed, links = False, 0
    while components:
        part = components.pop()
        if part in ("", "."):
            continue
        if part == "..":
            followed = followed.rpartition("/")[0]
            continue
        if followed == "/proc":
            # A descriptor of this process, as with <(...) or /dev/stdin: the kernel makes its links, which lead to no path.
            return path, False
        here = f"{followed}/{part}"
        status = os.lstat(here)
        is_other = status.st_uid not in (0, os.geteuid())
        is_exposed |= is_other or bool(stat.S_ISDIR(status.st_mode) and status.st_mode & _OTHERS_WRITE)
        if not stat.S_ISLNK(status.st_mode):
            followed = here
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = os.readlink(here)
        if is_other and not _may_link(here, status):
            raise BadData(
                f"{here}: is a link that another user (uid {status.st_uid}) has made to what is not his",
                "copy the file itself if you trust it",
            )
        components += target.split("/")[::-1]
        followed = "" if target.startswith("/") else followed
    return followed or "/", is_exposed


def _may_link(link: str, status: os.stat_result) -> bool:
    """Whether the owner of `link`, a path without links above it, may have it followed: to his own file, or to a blob of the
    Hub's cache.

    In a cache that several users fill, `NAME/snapshots/REVISION/FILE` of one leads to a blob in `NAME/blobs` that another has
    downloaded. The owner of the link must be able to read the blob himself: by the mode for everyone, or for the link's group.
    """
    target = os.path.realpath(link)
    target_status = os.lstat(target)
    if target_status.st_uid == status.st_uid:
        return True
    repository, _, directory = os.path.dirname(target).rpartition("/")
    is_blob = directory == "blobs" and stat.S_ISREG(target_status.st_mode) and link.startswith(f"{repository}/snapshots/")
    if not is_blob:
        return False
    mode = target_status.st_mode
    return bool(mode & stat.S_IROTH or (mode & stat.S_IRGRP and target_status.st_gid == status.st_gid))


def reason_for_distrust(status: os.stat_result, directory: str | os.PathLike[str]) -> str | None:
    """Why a file or directory found in `directory` may hold what others have written, in words; None when it cannot."""
    if stat.S_ISLNK(status.st_mode):
        return "is a symbolic link"
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return "is neither a file nor a directory"
    if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        return "has another name (a hard link)"
    return belongs_to_other(status, directory) or writable_by_others(status, directory)


def writable_by_others(status: os.stat_result, directory: str | os.PathLike[str], mode: int = 0o600) -> str | None:
    """Say that more users may write to a file found in `directory` than to a new file created there with `mode`.

    None otherwise. With mode 0666 a new file gets the permissions that the umask and the access list give to published files.
    """
    if not status.st_mode & _OTHERS_WRITE:
        return None
    new = _new_file(directory, mode)
    if new is not None and not status.st_mode & _OTHERS_WRITE & ~new.st_mode:
        return None
    return f"can be written to by others (mode {stat.S_IMODE(status.st_mode):04o})"


def reason_for_distrust_of_path(directory: str | os.PathLike[str]) -> str | None:
    """As `reason_for_distrust`, for a directory and its ancestors: whoever may write to an ancestor may replace its content.

    They may also belong to root, and those above may be writable by others if they are sticky, as /tmp is. Links are resolved.
    """
    path = Path(directory).resolve()
    for ancestor in (path, *path.parents):
        status = os.stat(ancestor)
        if status.st_uid != 0 and belongs_to_other(status, path):
            return f"{ancestor} belongs to another user (uid {status.st_uid})"
        is_sticky_ancestor = ancestor != path and status.st_mode & stat.S_ISVTX
        if status.st_mode & _OTHERS_WRITE and not is_sticky_ancestor and not modes_are_not_kept(path):
            return f"{ancestor} can be written to by others (mode {stat.S_IMODE(status.st_mode):04o})"
    return None


def can_be_renamed(path: str | os.PathLike[str]) -> bool:
    """Whether other users can rename the entries of the directory that holds `path`, even entries that this user made."""
    status = os.stat(os.path.dirname(path) or ".")
    is_sticky = status.st_mode & stat.S_ISVTX
    return status.st_uid not in (0, os.geteuid()) or bool(status.st_mode & _OTHERS_WRITE and not is_sticky)


def modes_are_not_kept(directory: str | os.PathLike[str]) -> bool:
    """Whether even a private file in `directory` looks as if others could write to it."""
    new = _new_file(directory)
    return new is not None and bool(new.st_mode & _OTHERS_WRITE)


def _new_file(directory: str | os.PathLike[str], mode: int = 0o600) -> os.stat_result | None:
    """The status of a file that this process makes in `directory` with `mode` and deletes; None when it cannot make one."""
    path = os.path.join(directory, f".lt-owner-{os.urandom(8).hex()}")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    except OSError:
        return None
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(path)
