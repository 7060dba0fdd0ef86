"""Find the generations of a log: the files that log rotation renamed, copied or compressed, oldest first.

Rotation names a generation after the log: `train.log.1`, `train.log-20261121`, `train.log.2.gz`, and `train-20261121.log` with a
date. `train.1.log` (logback, loguru) and `old/train.log.1` (logrotate's olddir) may belong to another rank or run. Such files
count only after a file whose content continues the log at the saved offset.
"""

import contextlib
import dataclasses
import functools
import os
import re
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import IO, Any

from lt_monitor.logs import compressed_logs, log_files
from lt_shared.console import BadData

# Rotation may rename files while they are being opened. A second listing shows it, and all files are opened again.
ATTEMPTS = 5
MAXIMUM_GENERATIONS = 256
# Directories beside a log that rotation may move files to.
MAXIMUM_DIRECTORIES = 64
# The clock of file modification times advances in steps of up to 10 ms, so a directory that has just changed may change again
# without a new time. Listings are cached only for directories older than this.
CLOCK_STEP_NS = 50_000_000
UNREADABLE = (OSError, BadData)

_COMPRESSION = re.compile(r"\.(?:gz|xz|bz2|zst)$")
_SUFFIX = re.compile(r"[.-](?:\d[\d._T:-]*|old)$")
_DATED = re.compile(r"[.-](?:\d{8}|\d{4}-\d\d-\d\d)[\d._T:-]*$")
_COUNTER = re.compile(r"[.-](\d{1,4})$")


@dataclasses.dataclass(frozen=True)
class Generation:
    """An open rotated file. `is_numbered` is False for a name that people give to copies, too.

    `series` is None for a file in the log's directory whose name begins with the log's name. Otherwise files of other logs may
    have the same name pattern; all such files in one directory are one series.
    """

    path: str
    log: IO[bytes]
    status: os.stat_result
    is_numbered: bool
    is_compressed: bool
    series: str | None = None


def is_rotated(path: str) -> bool:
    """Whether `path` has a suffix that log rotation appends."""
    return _SUFFIX.search(_COMPRESSION.sub("", path)) is not None


def originals(path: str) -> list[str]:
    """The paths that log rotation may have renamed to `path`."""
    first = len(path) - len(os.path.basename(path)) + 1
    return [path[:end] for end in range(first, len(path)) if path[end] in ".-"]


def rotated_paths(path: str) -> list[str]:
    """Return the files in the directory of `path` that are named after it, oldest first.

    A compressed copy is omitted if the uncompressed file exists.
    """
    directory, base = os.path.split(path)
    stem, ending = os.path.splitext(base)
    names = _names(directory or ".")
    named = {name for beginning in (base + ".", base + "-") for name in _beginning_with(beginning, names)}
    dated = [name for beginning in (stem + ".", stem + "-") for name in _beginning_with(beginning, names)]
    named |= {name for name in dated if _is_dated(_COMPRESSION.sub("", name), stem, ending)} if ending else set()
    whole = [name for name in named if name == (plain := _COMPRESSION.sub("", name)) or plain not in named]
    paths = [os.path.join(directory, name) for name in sorted(whole, key=lambda name: _age(name, base))]
    return [one for one in paths if os.path.isfile(one)][-MAXIMUM_GENERATIONS:]


def possible_paths(path: str) -> list[str]:
    """Return files that may be generations of `path` or of other logs, one series after the other."""
    directory, base = os.path.split(path)
    paths = _counted(path)
    for name in _directories(directory or "."):
        with contextlib.suppress(OSError):
            moved = os.path.join(directory, name, base)
            paths += _counted(moved) + rotated_paths(moved)
    return [one for one in paths if os.path.isfile(one)]


def _counted(path: str) -> list[str]:
    """Return the files in the directory of `path` with a counter before the extension, oldest first."""
    directory, base = os.path.split(path)
    stem, ending = os.path.splitext(base)
    form = re.compile(rf"{re.escape(stem)}[.-](\d{{1,4}}){re.escape(ending)}(?:{_COMPRESSION.pattern.removesuffix('$')})?")
    names = _names(directory or ".") if ending else []
    matches = [match for start in (".", "-") for name in _beginning_with(stem + start, names) if (match := form.fullmatch(name))]
    return [os.path.join(directory, match[0]) for match in sorted(matches, key=lambda match: -int(match[1]))]


def _directories(directory: str) -> list[str]:
    names = (entry.name for entry in os.scandir(directory) if entry.is_dir(follow_symlinks=False))
    return sorted(names)[:MAXIMUM_DIRECTORIES]


def _series(name: str, path: str) -> str | None:
    """Return the `Generation.series` of `name`: None if it begins with the log's name or has a date before the extension."""
    directory, base = os.path.split(_COMPRESSION.sub("", name))
    if directory != os.path.dirname(path):
        return directory
    stem, ending = os.path.splitext(os.path.basename(path))
    return None if base.startswith(stem + ending) or _is_dated(base, stem, ending) else ""


@contextlib.contextmanager
def opened(path: str, log: IO[bytes]) -> Iterator[list[Generation]]:
    """Open the rotated files of `path` as a consistent snapshot and yield them, oldest first.

    `log` is the open current log. Rotation may have renamed it by now, so its inode is excluded from the generations.
    """
    current = os.fstat(log.fileno())
    for attempt in range(ATTEMPTS):
        before = _identities(possible_paths(path) + rotated_paths(path))
        with contextlib.ExitStack() as files:
            generations = [one for name, *_ in before if (one := _opened(name, path, files)) is not None]
            if _identities(possible_paths(path) + rotated_paths(path)) == before or attempt + 1 == ATTEMPTS:
                yield [one for one in generations if not os.path.samestat(one.status, current)]
                return


def _names(directory: str) -> Sequence[str]:
    """Return the sorted names in a directory, cached because ten thousand logs may lie in one directory."""
    status = os.stat(directory)
    if time.time_ns() - status.st_mtime_ns < CLOCK_STEP_NS:
        return sorted(os.listdir(directory))
    return _listed(directory, status.st_dev, status.st_ino, status.st_mtime_ns)


@functools.lru_cache(8)
def _listed(directory: str, device: int, inode: int, mtime_ns: int) -> Sequence[str]:
    return sorted(os.listdir(directory))


def _beginning_with(text: str, names: Sequence[str]) -> Iterator[str]:
    for index in range(bisect_left(names, text), len(names)):
        if not names[index].startswith(text):
            return
        yield names[index]


def _is_dated(name: str, stem: str, ending: str) -> bool:
    return name.endswith(ending) and _DATED.fullmatch(name[len(stem) : -len(ending)]) is not None


def _age(name: str, base: str) -> tuple[bool, Any]:
    """Return a sort key, old to new: dates ascend, counters descend, and any counter is newer than any date."""
    plain = _COMPRESSION.sub("", name)
    counter = _COUNTER.fullmatch(plain[len(base) :]) if plain.startswith(base) else None
    if counter is not None:
        return True, [("", -int(counter[1]))]
    return False, [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", plain)]


def _identities(paths: Sequence[str]) -> list[tuple[str, int, int]]:
    identities = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(path)
            identities.append((path, status.st_dev, status.st_ino))
    return identities


def _opened(name: str, path: str, files: contextlib.ExitStack) -> Generation | None:
    """Open one rotated file; return None if it cannot be opened."""
    try:
        file = files.enter_context(log_files.open_file(name))
        log = compressed_logs.decompressing(file)
    except (OSError, BadData):
        return None
    plain = _COMPRESSION.sub("", name)
    series = _series(name, path)
    is_numbered = series is None and (not plain.startswith(path) or _SUFFIX.fullmatch(plain[len(path) :]) is not None)
    return Generation(name, log, os.fstat(file.fileno()), is_numbered, log is not file, series)
