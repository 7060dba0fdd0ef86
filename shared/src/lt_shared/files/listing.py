"""The files below a directory, local or remote, and what a walk through it does not read."""

import os
from typing import NamedTuple

from lt_shared.console import IoFailure, warn
from lt_shared.files import ownership, storage


class Listing(NamedTuple):
    """The regular files below a directory, sorted, and the paths that are not read.

    `special`: pipes, devices and sockets; `upward_links`: links to a directory that contains the one that holds them; `hidden`:
    names that begin with a dot, a hidden directory once.
    """

    files: list[str]
    special: list[str]
    upward_links: list[str]
    hidden: list[str]


def files_below(directory: str | os.PathLike[str]) -> list[str]:
    """The files of `list_below`; warns of pipes, devices and links that lead upwards."""
    listing = list_below(directory)
    if left_out := [*listing.special, *listing.upward_links]:
        more = f" and {len(left_out) - 1:,} more" if len(left_out) > 1 else ""
        warn(f"{min(left_out)}{more}: not read: no file, or a link that leads upwards; name it to read it")
    return listing.files


def list_below(directory: str | os.PathLike[str]) -> Listing:
    """List a directory and its subdirectories.

    Links are followed unless they lead upwards, and each directory is visited once. Raises BadData for a link that another user
    made to a third user's file, as opening it would.
    """
    name = os.fspath(directory)
    if storage.is_remote(name):
        filesystem, key = storage.store_of(name)
        keys = storage.retry(lambda: filesystem.find(key), name)
        hidden = [path for path in keys if "/." in path.removeprefix(key)]
        files = sorted(filesystem.unstrip_protocol(path) for path in set(keys).difference(hidden))
        return Listing(files, [], [], sorted(map(filesystem.unstrip_protocol, hidden)))
    listing = Listing([], [], [], [])
    root = os.path.join(os.path.realpath(name), "")
    visited: set[tuple[int, int]] = set()
    for parent, directories, files in os.walk(name, onerror=_raise, followlinks=True):
        status = os.stat(parent)
        if (status.st_dev, status.st_ino) in visited:
            directories.clear()
            continue
        visited.add((status.st_dev, status.st_ino))
        read_directories: list[str] = []
        for names, readable in ((directories, read_directories), (files, listing.files)):
            for path in (os.path.join(parent, entry) for entry in names):
                _category(path, root, listing, readable).append(path)
        # In place, because os.walk descends into the directories that remain in its list.
        directories[:] = map(os.path.basename, read_directories)
    for paths in listing:
        paths.sort()
    return listing


def _category(path: str, root: str, listing: Listing, readable: list[str]) -> list[str]:
    """The list that `path` belongs to. `root` ends with a slash.

    A link to nothing is readable: opening it raises NoInput with its name.
    """
    if os.path.basename(path).startswith("."):
        return listing.hidden
    if storage.is_special(path):
        return listing.special
    if not os.path.islink(path):
        return readable
    if os.path.exists(path):
        ownership.check_link(path)
    target, parent = (os.path.join(os.path.realpath(unresolved), "") for unresolved in (path, os.path.dirname(path)))
    leads_upwards = root != target and (root.startswith(target) or (parent.startswith(target) and not target.startswith(root)))
    return listing.upward_links if leads_upwards else readable


def _raise(error: OSError) -> None:
    raise IoFailure(f"{error.filename}: {error.strerror}")
