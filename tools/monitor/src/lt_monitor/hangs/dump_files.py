"""Read dump files by rank. The dump gives the rank, else the number after `rank` in its name, else the last number in it.

A directory stands for the files in it and in its `stacks`, where lt-train's watchdog writes. A file there that is no dump is
skipped with a note; a file that is named directly must be a dump. Two dumps of one kind and rank come from two jobs or two
moments and must not be mixed. A dump is read whole: 20,000 calls take 5 MB, so more than 32 MiB is refused. A pickle is also
refused if its containers would need more than some hundred megabytes, because an empty container takes one byte in the file.
"""

import dataclasses
import os
import re
from collections.abc import Iterator, Sequence

from lt_monitor.hangs import flight_recorder, stack_dumps
from lt_monitor.hangs.flight_recorder import MAX_RANKS, FlightDump
from lt_monitor.hangs.process_groups import Job
from lt_monitor.hangs.stack_dumps import StackDump
from lt_monitor.logs import log_files
from lt_shared import pickles
from lt_shared.console import BadData, NoInput, note
from lt_shared.files import storage, strict_json

MAX_BYTES = 32 << 20
MAX_CONTAINERS = 4_000_000
STACKS = "stacks"
EXPECTED = "expected a flight recorder dump (TORCH_NCCL_DUMP_ON_TIMEOUT), py-spy dump, or lt-train's stacks"

_CONTAINERS = b"}])(\x8f"
_NAMED_RANK = re.compile(r"rank[_.-]{0,2}(\d{1,7})(?!\d)", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(\d{1,7})(?=\D{0,20}$)")
_PICKLE = b"\x80"


@dataclasses.dataclass(frozen=True)
class _File:
    path: str
    rank: int
    dump: FlightDump | StackDump

    @property
    def kind(self) -> str:
        return "flight recorder" if isinstance(self.dump, FlightDump) else "stack"


def read(patterns: Sequence[str]) -> Job:
    """Read a job's dumps. Raises BadData for a named file that is no dump, NoInput if there is no dump."""
    file_by_kind_and_rank: dict[tuple[str, int], _File] = {}
    for file in _files(patterns):
        other = file_by_kind_and_rank.setdefault((file.kind, file.rank), file)
        if other is not file:
            both = f"{log_files.printable(other.path)} and {log_files.printable(file.path)}"
            raise BadData(f"two {file.kind} dumps of rank {file.rank}: {both}", "name the dumps of one job")
    if not file_by_kind_and_rank:
        raise NoInput(f"{', '.join(map(log_files.printable, patterns))}: no dump there", EXPECTED)
    files = sorted(file_by_kind_and_rank.values(), key=lambda file: file.rank)
    flights = {file.rank: file.dump for file in files if isinstance(file.dump, FlightDump)}
    stacks = {file.rank: file.dump for file in files if isinstance(file.dump, StackDump)}
    written = [os.stat(file.path).st_mtime_ns for file in files if file.rank in flights and file.kind != "stack"]
    return Job(flights, stacks, max(written, default=None))


def _files(patterns: Sequence[str]) -> Iterator[_File]:
    """Read each file that the patterns match once. Files in a directory that are no dumps are skipped."""
    read_paths: set[str] = set()
    for pattern in patterns:
        for path in storage.expand([pattern]):
            if path in read_paths:
                continue
            read_paths.add(path)
            if os.path.isdir(path):
                yield from (file for file in _in_directory(path) if file.path not in read_paths)
            else:
                yield _read(path)


def _in_directory(directory: str) -> list[_File]:
    paths = [os.path.join(directory, name) for name in sorted(os.listdir(directory)) if not name.startswith(".")]
    inside = os.path.join(directory, STACKS)
    if os.path.isdir(inside):
        paths += [os.path.join(inside, name) for name in sorted(os.listdir(inside))]
    paths = [path for path in paths if os.path.isfile(path)]
    dumps = [file for file in map(_if_dump, paths) if file is not None]
    if dumps and len(dumps) < len(paths):
        note(f"{log_files.printable(directory)}: {len(paths) - len(dumps)} of {len(paths)} files are no dumps")
    return dumps


def _if_dump(path: str) -> _File | None:
    try:
        return _read(path)
    except (BadData, NoInput):
        return None


def _read(path: str) -> _File:
    dump = _dump(path)
    return _File(path, _rank(path, dump), dump)


def _dump(path: str) -> FlightDump | StackDump:
    shown = log_files.printable(path)
    content = _content(path, shown)
    if not content.strip():
        raise NoInput(f"{shown}: is empty", "the rank was ended before it wrote its dump")
    dump = _parsed(content, shown)
    if dump is None:
        raise BadData(f"{shown}: not a dump", EXPECTED)
    if isinstance(dump, FlightDump) and dump.malformed and not dump.calls:
        raise BadData(f"{shown}: none of its {dump.malformed} entries is a call", EXPECTED)
    return dump


def _content(path: str, shown: str) -> bytes:
    with storage.reading(path), log_files.open_file(path) as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise BadData(f"{shown}: more than {MAX_BYTES >> 20} MiB, which no dump of one rank has")
    return content


def _parsed(content: bytes, shown: str) -> FlightDump | StackDump | None:
    if content.startswith(_PICKLE):
        if sum(content.count(code) for code in _CONTAINERS) > MAX_CONTAINERS:
            raise BadData(f"{shown}: more lists and objects than a dump of one rank has")
        return flight_recorder.of_value(pickles.load_plain(content, shown))
    if content.lstrip()[:1] in (b"{", b"["):
        try:
            value = strict_json.loads(content)
        except ValueError as error:
            raise BadData(f"{shown}: neither JSON nor another dump: {error}", EXPECTED) from None
        return stack_dumps.of_py_spy(value) or flight_recorder.of_value(value)
    return stack_dumps.parse(content.decode(errors="replace"))


def _rank(path: str, dump: FlightDump | StackDump) -> int:
    name = os.path.basename(path)
    match = _NAMED_RANK.search(name) or _LAST_NUMBER.search(name)
    rank = dump.rank if dump.rank is not None else int(match[1]) if match else None
    if rank is None or rank >= MAX_RANKS:
        shown = log_files.printable(path)
        raise BadData(f"{shown}: neither its name nor its content says the rank", "call it e.g. dump_rank_3")
    return rank
