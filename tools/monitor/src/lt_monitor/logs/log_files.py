"""Find the logs of the command line, open and read them, and name the run of a log."""

import contextlib
import errno
import fcntl
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO

from lt_monitor.events.records import Record
from lt_monitor.logs import compressed_logs, file_contents, line_blocks
from lt_monitor.logs.log_parser import LogParser
from lt_monitor.logs.parsed_block import ParsedBlock
from lt_shared.console import BadData, NoInput, ToolError, counted, warn
from lt_shared.files import ownership, storage

STANDARD_INPUT = "-"
# Linux's limit for unprivileged users. The default pipe holds 64 KiB, and every block costs a fixed time.
PIPE_BYTES = 1 << 20

_EXTENSION = re.compile(rf"\.(?:log|out|err|txt|jsonl)(?:[.-]\d+)?(?:{file_contents.COMPRESSION.pattern.removesuffix('$')})?$")
RUN_LOGS = ("train.log", "metrics.jsonl")
LOG_ENDINGS = (".log", ".out", ".txt", ".err")
_NAMES_FOR_ANY_RUN = ("train", "metrics", "log", "output", "stdout", "stderr", "progress")
# Levels of directories that are searched for logs of ranks.
RANK_DEPTH = 4
# Launchers name these streams' files without an extension.
_STREAM_NAMES = ("stdout", "stderr", "output", "log")

_OF_HOW_MANY = r"(?:[._-]?of[._-]?\d+)?"
_RANK_WORD = r"(?:global|local)?[._-]?rank|task|node|proc(?:ess)?|worker|master"
# A rank's whole name may be such a word. As a suffix, `gpu8` and `host2` mean the size of the run, not a rank.
# EC2 calls its machines ip-10-1-2-3, Cray nid001234.
_NAME_WORD = rf"{_RANK_WORD}|host|gpu|device|pod|replica|nid|ip-\d{{1,3}}-\d{{1,3}}-\d{{1,3}}"
_RANK_SUFFIX = re.compile(rf"(?:[._-](?:{_RANK_WORD})[._-]?\d+{_OF_HOW_MANY})+$", re.IGNORECASE)
# Small clusters call their machines node-a and node-b.
_RANK_NAME = re.compile(
    rf"(?P<word>{_NAME_WORD})(?:[._-]?\d+{_OF_HOW_MANY}|[._-][a-z])(?:[._-](?:{_NAME_WORD})[._-]?\d+)*", re.IGNORECASE
)
_ATTEMPT = re.compile(r"/attempt_\d+(?:/\d+)?(?=/|$)")
_NUMBER = re.compile(r"\d+")
_NUMBERED_LOG = re.compile(r"(?:.*\.)?(?:log|out|err|txt|job|stdout|stderr)(?:[._-]\d+){1,3}", re.IGNORECASE)


def expand(patterns: Sequence[str], quiet: bool = False) -> list[str]:
    """Expand the arguments to distinct log paths; a directory means the logs in it.

    Pipes and links that another user may have planted are left out, with a warning unless `quiet`. Raises BadData when nothing
    else matches; NoInput when a log is missing or unreadable, or a directory has no logs.
    """
    left_out: dict[str, ToolError] = {}
    log_paths: list[str] = []
    for pattern in patterns:
        for path in _matches(pattern, left_out):
            if path == STANDARD_INPUT or storage.is_remote(path):
                log_paths.append(path)
            elif _is_trusted(path, left_out):
                log_paths += _logs_in(path, left_out) if os.path.isdir(path) else [path]
    paths = list(dict.fromkeys(log_paths))
    for path in paths:
        _check_readable(path)
    if left_out and not paths:
        raise next(iter(left_out.values()))
    for problem in {} if quiet else left_out.values():
        warn(f"{printable(str(problem))}: left out")
    return paths


def _check_readable(path: str) -> None:
    if path == STANDARD_INPUT or storage.is_remote(path):
        return
    with storage.reading(path):
        os.stat(path)
    if not os.access(path, os.R_OK):
        raise NoInput(f"{path}: permission denied")


def _matches(pattern: str, left_out: dict[str, ToolError]) -> list[str]:
    """Return the matches of a pattern without pipes and devices, because opening a stray pipe may block for ever."""
    paths = storage.expand([pattern])
    if paths == [pattern] or storage.is_remote(pattern):
        return paths
    for path in paths:
        if storage.is_special(path):
            left_out[path] = BadData(f"{path}: is neither a file nor a directory")
    return [path for path in paths if path not in left_out]


def _is_trusted(path: str, left_out: dict[str, ToolError]) -> bool:
    """Whether the path's owner can be trusted. If not, store the problem in `left_out`."""
    problem = _planted(path)
    if problem is not None:
        left_out[path] = problem
    return problem is None


def _planted(path: str) -> ToolError | None:
    """Return the problem of a path that another user may have planted to block or misdirect the reader; None if there is none.

    Shell patterns also match files that another user put among the logs. A pipe that this process already has open is intended,
    such as bash's <(...).
    """
    try:
        status = os.stat(path)
    except OSError:
        return _planted_link_to_nothing(path)
    is_special = not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode))
    if is_special and _is_open(status):
        return None
    if is_special and status.st_uid not in (0, os.geteuid()):
        return BadData(f"{path}: is neither a file nor a directory, and belongs to another user (uid {status.st_uid})")
    try:
        ownership.check_link(path)
    except BadData as error:
        return error
    except OSError:
        return None
    return None


def _planted_link_to_nothing(path: str) -> ToolError | None:
    with contextlib.suppress(OSError):
        link = os.lstat(path)
        if stat.S_ISLNK(link.st_mode) and link.st_uid not in (0, os.geteuid()):
            return NoInput(f"{path}: is a link that another user (uid {link.st_uid}) has made to nothing that is there")
    return None


def _is_open(status: os.stat_result) -> bool:
    names = os.listdir("/dev/fd") if os.path.isdir("/dev/fd") else ["0"]
    for name in names:
        with contextlib.suppress(OSError):
            if os.path.samestat(status, os.fstat(int(name))):
                return True
    return False


def open_file(path: str) -> IO[bytes]:
    """Open a log that is a regular file; links are followed. Raises FileNotFoundError if it is no longer a regular file.

    O_NONBLOCK avoids waiting for a pipe that has replaced the file. Another user's link raises BadData.
    """
    descriptor = ownership.open_checked(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "not a regular file any more", path)
    return open(descriptor, "rb")


def open_log(path: str) -> IO[bytes]:
    """Open a log as `open_file` does, as its content if it is compressed."""
    return compressed_logs.decompressing(open_file(path))


def _logs_in(directory: str, left_out: dict[str, ToolError]) -> list[str]:
    """Return lt-train's log in the directory (one of two equivalent files), else every file named like a log or a rank."""
    paths = {name: os.path.join(directory, name) for name in sorted(os.listdir(directory))}
    files = {name: path for name, path in paths.items() if os.path.isfile(path)}
    run_logs = [files[name] for name in RUN_LOGS if name in files and os.path.getsize(files[name])]
    named_logs = [path for name, path in files.items() if _is_called_log(name) and not name.startswith(".")]
    named_logs = list(dict.fromkeys([*named_logs, *(() if run_logs else _rank_logs(directory))]))
    if not run_logs and not named_logs:
        named_logs = _numbered_logs(directory) or _host_logs(directory)
    unreadable: dict[str, ToolError] = {}
    named_logs = list(_readable(named_logs, unreadable))
    if not run_logs:
        left_out |= unreadable
    if not run_logs and not named_logs and not unreadable:
        endings = ", ".join(f"*{ending}" for ending in LOG_ENDINGS)
        raise NoInput(
            f"{directory}: no log in this directory, neither {' nor '.join(RUN_LOGS)} nor {endings}",
            f"name the logs, e.g. '{os.path.join(directory, '*', RUN_LOGS[0])}'",
        )
    return [path for path in run_logs if _is_trusted(path, left_out)][:1] or [
        path for path in named_logs if _is_trusted(path, left_out)
    ]


def _is_called_log(name: str) -> bool:
    return file_contents.COMPRESSION.sub("", name).endswith(LOG_ENDINGS)


def _beginning(path: str) -> bytes:
    with open_file(path) as file:
        return file.read(file_contents.PROBE_BYTES)


def _readable(paths: Iterable[str], unreadable: dict[str, ToolError]) -> Iterator[str]:
    """Yield the paths that can be read, without compressed copies of plain files; store the problems in `unreadable`."""
    for path in paths:
        plain = file_contents.COMPRESSION.sub("", path)
        try:
            begin = b"" if plain == path else _beginning(path)
            problem = file_contents.packing_problem(printable(path), begin)
            is_copy = os.path.exists(plain) and compressed_logs.is_compressed(begin)
        except OSError as error:
            problem, is_copy = NoInput(f"{path}: {error.strerror}"), False
        except BadData as error:
            problem, is_copy = error, False
        if problem is None and not is_copy:
            yield path
        elif problem is not None and not os.path.exists(plain):
            unreadable[path] = problem


def run_name(path: str) -> str:
    """Derive the run's name from its log: the path without extension and rank, or the directory if the file name is generic.

    `/fsx/gpt/slurm-77.out` and its rotated `slurm-77.out.1` are `/fsx/gpt/slurm-77`; `/fsx/gpt/train.log`,
    `/fsx/gpt/attempt_0/3/stdout.log` and `/fsx/gpt/node1/rank_2.log` are `/fsx/gpt`.
    """
    if path == STANDARD_INPUT:
        return path
    name = _without_rank(_EXTENSION.sub("", printable(path)) or printable(path))
    directory, base = os.path.split(name)
    return _directory_of_run(directory) if base in _NAMES_FOR_ANY_RUN and directory.strip("./") else name


def _without_rank(name: str) -> str:
    """Remove the parts that distinguish ranks from `name`, a path without extension.

    If nothing else remains, return the directory or the word before the number: `gpt` for `gpt/node1/rank_2`, `rank` for
    `rank_2`.
    """
    name = _ATTEMPT.sub("", name)
    whole = _directory_of_run(name)
    return whole if whole != name else _RANK_SUFFIX.sub("", name) or name


def _directory_of_run(path: str) -> str:
    """Return `path`, or its parent directory if `path` is a directory of a rank or a node."""
    directory, base = os.path.split(path)
    while directory.strip("./") and (_is_rank(base) or (_NUMBER.fullmatch(base) and _is_rank(os.path.basename(directory)))):
        path = directory
        directory, base = os.path.split(path)
    match = _RANK_NAME.fullmatch(base)
    return os.path.join(directory, match["word"]) if match is not None else path


def _rank_logs(directory: str, depth: int = RANK_DEPTH, is_of_rank: bool = False) -> Iterator[str]:
    """Yield the logs of ranks below `directory`: files named after a rank, and every log in a directory named after a rank."""
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        stem = name = file_contents.COMPRESSION.sub("", entry.name)
        for ending in LOG_ENDINGS:
            stem = stem.removesuffix(ending)
        is_log = stem != name or stem in _STREAM_NAMES
        if entry.is_dir(follow_symlinks=False):
            is_rank = is_of_rank or _is_rank(entry.name) or _ATTEMPT.fullmatch(f"/{entry.name}") is not None
            if depth > 1:
                yield from _rank_logs(entry.path, depth - 1, is_rank)
        elif os.path.isfile(entry.path) and (_is_rank(stem) or (is_of_rank and (is_log or _NUMBER.fullmatch(stem)))):
            yield entry.path


def _numbered_logs(directory: str) -> list[str]:
    """Return files such as `out.3` and `train.log.3`, and logs in directories named by a number."""
    numbered = []
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False) and _NUMBER.fullmatch(entry.name):
            numbered += list(_rank_logs(entry.path, RANK_DEPTH - 1, True))
        elif entry.is_file() and _NUMBERED_LOG.fullmatch(file_contents.COMPRESSION.sub("", entry.name)):
            numbered.append(entry.path)
    return numbered


def _host_logs(directory: str) -> list[str]:
    """Return the numbered logs and the streams' logs in subdirectories with any names, such as hosts, if there are several."""
    by_host = {
        entry.name: [path for path in _rank_logs(entry.path, 1, True) if is_host_log(path)]
        for entry in sorted(os.scandir(directory), key=lambda entry: entry.name)
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
    }
    hosts = [logs for logs in by_host.values() if logs]
    return [path for logs in hosts for path in logs] if len(hosts) > 1 else []


def is_host_log(path: str) -> bool:
    """Whether the name of a log says only which process of its directory or which stream it is: `0.log`, `stderr`."""
    stem = _EXTENSION.sub("", os.path.basename(path))
    return stem in _STREAM_NAMES or _NUMBER.fullmatch(stem) is not None


def _is_rank(name: str) -> bool:
    return _RANK_NAME.fullmatch(name) is not None


def printable(path: str) -> str:
    """Return a path for output, with replacement characters for bytes that are not UTF-8."""
    return os.fsencode(path).decode(errors="replace")


def parsed_blocks(path: str) -> Iterator[ParsedBlock]:
    """Parse one log (or `-`), one read at a time. Warns on stderr about malformed event records."""
    parser = LogParser()
    offset = 0
    with _open(path) as file:
        # `read1` returns the data that a pipe has now, so the events of a running command come at once.
        read = file.read1 if path == STANDARD_INPUT else line_blocks.whole_lines(file)  # type: ignore[attr-defined]
        is_compressed = isinstance(file, compressed_logs.DecompressedLog)
        for block in line_blocks.blocks(read, final=path == STANDARD_INPUT or is_compressed):
            if offset == 0:
                warn_of_no_text(block, path)
            yield parser.parse(block, offset)
            offset += len(block)
        warn_of_damage(file, path, offset)
    warn_of_malformed(parser, path)


def event_blocks(path: str, run: str | None = None) -> Iterator[list[Record]]:
    """Yield a log's events (`-` is standard input) as records, complete with source and run, by default the log's `run_name`."""
    run, shown = run or run_name(path), printable(path)
    for block in parsed_blocks(path):
        yield block.records(shown, run)


def _open(path: str) -> IO[bytes]:
    if path == STANDARD_INPUT:
        # This fails if standard input is no pipe, or if the user's pipes already use their memory limit.
        with contextlib.suppress(OSError):
            fcntl.fcntl(sys.stdin.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        return compressed_logs.decompressing(open(sys.stdin.fileno(), "rb", closefd=False))
    if storage.is_remote(path):
        return compressed_logs.decompressing(storage.open_read(path))
    problem = _planted(path)
    if problem is not None:
        raise problem
    with storage.reading(path):
        return compressed_logs.decompressing(open(path, "rb")) if storage.is_special(path) else open_log(path)


def require_text(paths: Sequence[str]) -> None:
    """Raise NoInput or BadData if no log has text. Standard input, remote logs and pipes cannot be read twice and are skipped."""
    problems = {}
    for path in paths:
        if path == STANDARD_INPUT or storage.is_remote(path) or storage.is_special(path):
            continue
        with storage.reading(path), open_log(path) as file:
            problem = file_contents.text_problem(printable(path), file)
        if problem is not None:
            problems[path] = problem
    require_one_text(problems, len(paths), is_warned=True)


def require_one_text(problems: Mapping[str, ToolError], count: int, is_warned: bool = False) -> None:
    """Raise the first problem if all `count` logs have one. Otherwise warn about logs without text, unless `is_warned`."""
    if problems and len(problems) == count:
        raise next(iter(problems.values()))
    for problem in () if is_warned else problems.values():
        if isinstance(problem, BadData):
            warn(f"{problem}: left out")


def warn_of_damage(log: IO[bytes], path: str, content_bytes: int) -> None:
    """Warn that a compressed log gave less than its whole content. Without any content, its reader raises an error."""
    damage = compressed_logs.problem_of(log)
    if damage is not None and content_bytes:
        warn(f"{printable(path)}: {damage}; the text before it is read")


def warn_of_no_text(begin: bytes, path: str) -> None:
    """Warn about a log that begins with no text, with a remedy. It is no error, because patterns may match other files, too."""
    shown = printable(path)
    problem = file_contents.packing_problem(shown, begin) or file_contents.binary_problem(shown, begin)
    if problem is not None:
        warn(f"{problem}: {problem.hint}")


def warn_of_malformed(parser: LogParser, path: str) -> None:
    if parser.malformed:
        warn(f"{printable(path)}: {counted(parser.malformed, 'malformed event record')}, the first {parser.first_malformed}")
