"""Logs as streams of whole lines with their byte offsets, and which run a log belongs to.

A carriage return ends a line as well as a newline does: progress bars rewrite one line for hours. The end of a file that has no
line end yet is still being written and is left for the next time; the end of standard input is final.
"""

import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Sequence

from lt_monitor.events import Record
from lt_monitor.log_parser import LogParser
from lt_shared import storage
from lt_shared.console import NoInput, warn

BLOCK_BYTES = 1 << 20
LINE_LIMIT_BYTES = 1 << 22
STANDARD_INPUT = "-"

_EXTENSION = re.compile(r"\.(?:log|out|err|txt|jsonl)(?:[.-]\d+)?$")
_NAMES_FOR_ANY_RUN = ("train", "metrics", "log", "output", "stdout", "stderr")

Line = tuple[int, bytes]


def expand(patterns: Sequence[str]) -> list[str]:
    """The logs that the arguments mean, each once. Raises NoInput when one of them is missing, unreadable or a directory."""
    paths = list(dict.fromkeys(storage.expand(patterns)))
    for path in paths:
        if path == STANDARD_INPUT or storage.is_remote(path):
            continue
        try:
            mode = os.stat(path).st_mode
        except FileNotFoundError:
            raise NoInput(f"{path}: no such file") from None
        except PermissionError:
            raise NoInput(f"{path}: permission denied") from None
        if stat.S_ISDIR(mode):
            raise NoInput(f"{path}: is a directory", f"name the logs in it, e.g. {os.path.join(path, '*.out')}")
        if not os.access(path, os.R_OK):
            raise NoInput(f"{path}: permission denied")
    return paths


def run_name(path: str) -> str:
    """A run's name from its log: the path without the extension, or the directory when the file's own name says nothing.

    `/fsx/gpt/slurm-77.out` and its rotated `slurm-77.out.1` are `/fsx/gpt/slurm-77`; `/fsx/gpt/train.log` is `/fsx/gpt`.
    """
    if path == STANDARD_INPUT:
        return path
    name = _EXTENSION.sub("", path) or path
    directory, base = os.path.split(name)
    return directory if base in _NAMES_FOR_ANY_RUN and directory.strip("./") else name


def line_blocks(read: Callable[[int], bytes], offset: int = 0, final: bool = False) -> Iterator[list[Line]]:
    """Whole lines with the offset of each, as many at a time as one read gave. `final`: the end of the input ends a line.

    A line longer than LINE_LIMIT_BYTES is passed on in pieces: nothing of interest is that long, and memory stays bounded.
    """
    pending = b""
    while block := read(BLOCK_BYTES):
        data = pending + block
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if end == 0 and len(data) > LINE_LIMIT_BYTES:
            end = len(data)
        pending = data[end:]
        if end:
            lines = _with_offsets(data[:end], offset)
            offset += end
            yield lines
    if final and pending:
        yield [(offset, pending)]


def _with_offsets(data: bytes, offset: int) -> list[Line]:
    lines = []
    for line in data.splitlines(keepends=True):
        lines.append((offset, line))
        offset += len(line)
    return lines


def event_blocks(path: str) -> Iterator[list[Record]]:
    """All events of one log (or `-`), as many at a time as one read gave. Warns on stderr about malformed event records."""
    parser = LogParser()
    if path == STANDARD_INPUT:
        with open(sys.stdin.fileno(), "rb", closefd=False) as stdin:
            for lines in line_blocks(stdin.read1, final=True):
                yield parse_lines(parser, lines, path, run_name(path))
    else:
        with storage.open_read(path) as file:
            for lines in line_blocks(file.read):
                yield parse_lines(parser, lines, path, run_name(path))
    warn_of_malformed(parser, path)


def parse_lines(parser: LogParser, lines: list[Line], path: str, run: str) -> list[Record]:
    """The events among `lines` of the log `path`, complete with run and source."""
    records = []
    for offset, line in lines:
        record = parser.parse(line, offset)
        if record is not None:
            records.append(_attributed(record, path, run))
    return records


def warn_of_malformed(parser: LogParser, path: str) -> None:
    if parser.malformed:
        warn(f"{path}: {parser.malformed} lines begin like events but are none, the first {parser.first_malformed}")


def _attributed(record: Record, path: str, run: str) -> Record:
    source = record.pop("src")
    file = source.get("file")
    return {
        "v": record.pop("v"),
        "kind": record.pop("kind"),
        "run": record.pop("run", run),
        **record,
        "src": {"file": file if isinstance(file, str) else path, "offset": source["offset"]},
    }
