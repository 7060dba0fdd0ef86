"""The dumps among files, by rank. The rank is what the dump says, else the number after `rank` in its name, else the last number.

A directory means the files in it and in its `stacks`, where lt-train's watchdog writes; what there is no dump is left out with
a note, and a file that is named itself must be one. Two dumps of one kind and rank are of two jobs or two moments, which must
not be mixed. A dump is read whole: 20,000 calls take 5 MB, so more than 32 MiB is not read, nor a pickle of more containers
than fit into some hundred megabytes, as an empty one is a byte there.
"""

import os
import re
from collections.abc import Iterator, Sequence

from lt_monitor.hangs import flight_recorder, stack_dumps
from lt_monitor.hangs.flight_recorder import MAX_RANKS, FlightDump
from lt_monitor.hangs.process_groups import Job
from lt_monitor.hangs.stack_dumps import StackDump
from lt_monitor.logs import log_files
from lt_shared import pickles, storage, strict_json
from lt_shared.console import BadData, NoInput, note

MAX_BYTES = 32 << 20
MAX_CONTAINERS = 4_000_000
STACKS = "stacks"
EXPECTED = "expected a flight recorder dump (TORCH_NCCL_DUMP_ON_TIMEOUT), py-spy dump, or lt-train's stacks"

_CONTAINERS = b"}])(\x8f"
_NAMED_RANK = re.compile(r"rank[_.-]{0,2}(\d{1,7})(?!\d)", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(\d{1,7})(?=\D{0,20}$)")
_PICKLE = b"\x80"


def read(patterns: Sequence[str]) -> Job:
    """The dumps of one job. Raises BadData for a named file that is no dump, NoInput when there is none at all."""
    flights: dict[int, FlightDump] = {}
    stacks: dict[int, StackDump] = {}
    paths: dict[tuple[str, int], str] = {}
    written: list[int] = []
    for path in _dump_paths(patterns):
        dump = _dump(path)
        rank = _rank(path, dump)
        kind = "flight recorder" if isinstance(dump, FlightDump) else "stack"
        if (kind, rank) in paths:
            other = log_files.printable(paths[kind, rank])
            raise BadData(
                f"two {kind} dumps of rank {rank}: {other} and {log_files.printable(path)}", "name the dumps of one job"
            )
        paths[kind, rank] = path
        if isinstance(dump, FlightDump):
            flights[rank] = dump
            written.append(os.stat(path).st_mtime_ns)
        else:
            stacks[rank] = dump
    return Job(dict(sorted(flights.items())), dict(sorted(stacks.items())), max(written, default=None))


def _dump_paths(patterns: Sequence[str]) -> Iterator[str]:
    """The files, each once; those of a directory only when they are dumps."""
    found: dict[str, None] = {}
    for pattern in patterns:
        for path in storage.expand([pattern]):
            if os.path.isdir(path):
                found.update(dict.fromkeys(_dumps_in(path)))
            else:
                found[path] = None
    if not found:
        raise NoInput(f"{', '.join(map(log_files.printable, patterns))}: no dump there", EXPECTED)
    yield from found


def _dumps_in(directory: str) -> list[str]:
    paths = [os.path.join(directory, name) for name in sorted(os.listdir(directory)) if not name.startswith(".")]
    inside = os.path.join(directory, STACKS)
    if os.path.isdir(inside):
        paths += [os.path.join(inside, name) for name in sorted(os.listdir(inside))]
    files = [path for path in paths if os.path.isfile(path)]
    dumps = [path for path in files if _is_dump(path)]
    if dumps and len(dumps) < len(files):
        note(f"{log_files.printable(directory)}: {len(files) - len(dumps)} of {len(files)} files are no dumps")
    return dumps


def _is_dump(path: str) -> bool:
    try:
        _rank(path, _dump(path))
    except BadData:
        return False
    return True


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
    found = _NAMED_RANK.search(name) or _LAST_NUMBER.search(name)
    rank = dump.rank if dump.rank is not None else int(found[1]) if found else None
    if rank is None or rank >= MAX_RANKS:
        shown = log_files.printable(path)
        raise BadData(f"{shown}: neither its name nor its content says the rank", "call it e.g. dump_rank_3")
    return rank
