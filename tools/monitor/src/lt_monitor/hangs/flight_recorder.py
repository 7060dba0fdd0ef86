"""Read dumps of torch's flight recorder: the last collectives that a rank enqueued, and their states.

FlightRecorder.hpp (before torch 2.7, TraceUtils.h) defines the format: an object with `version`, `pg_config`, `pg_status`
and `entries`, as a pickle of plain values or as JSON. The oldest dumps (torch 2.2) are the list of entries alone, and have
`seq_id` for `collective_seq_id`. JSON has no frames, 0 for a time that has not come, and texts for the numbers in `pg_status`.

A call is finished when its state is `completed`, or when `pg_status` says that its group has completed one with its number:
gloo never sets the state. `retired` alone does not finish one, as a call that timed out is retired, too.
"""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

from lt_monitor.events.escaping import printable
from lt_monitor.hangs.stack_dumps import MAX_FRAMES, TEXT_CHARACTERS, Frame

MAX_CALLS = 200_000
MAX_GROUPS = 1000
# For a job, and for all groups together.
MAX_RANKS, MAX_MEMBERS = 1 << 17, 1 << 20
MAX_TENSORS, MAX_DIMENSIONS = 64, 16
MAX_NUMBER = 1 << 62
STATES = ("scheduled", "started", "completed")
COALESCED = "coalesced"

_NUMBER = re.compile(r"-?\d{1,19}")
_RANK_NUMBER = re.compile(r"\d{1,6}")
_PEERS = re.compile(r"(send|recv) (\d{1,6})(?:->|<-)(\d{1,6})")

Sizes = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """One operation of a rank. `source` and `destination` are places in the group, and None but for send and recv."""

    record: int
    group: str
    description: str
    sequence: int
    operation: str
    is_point_to_point: bool
    source: int | None
    destination: int | None
    input_sizes: Sizes
    output_sizes: Sizes
    input_types: tuple[str, ...]
    output_types: tuple[str, ...]
    state: str
    is_finished: bool
    created_ns: int | None
    timeout_ms: int | None
    frames: tuple[Frame, ...]

    @property
    def state_in_words(self) -> str:
        return "completed" if self.is_finished else self.state

    def __str__(self) -> str:
        if self.is_point_to_point:
            return self.operation
        return f"{self.operation} #{self.sequence}"


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """A process group as one rank knows it."""

    name: str
    description: str
    ranks: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class FlightDump:
    """`enqueued` has the groups' last collectives, if the dump has their numbers; `malformed` counts excluded entries."""

    version: str
    rank: int | None
    groups: tuple[Group, ...]
    calls: tuple[Call, ...]
    enqueued: dict[tuple[str, str], int]
    malformed: int


def of_value(value: Any) -> FlightDump | None:
    """Convert the value of a pickle or JSON file to a dump; None if the value is something else."""
    if isinstance(value, list) and value and isinstance(value[0], dict) and "profiling_name" in value[0]:
        value = {"entries": value}
    if not isinstance(value, dict) or not ("pg_config" in value or "entries" in value):
        return None
    entries = value.get("entries", [])
    if not isinstance(entries, list):
        return None
    status = _status(value.get("pg_status"))
    reader = _CallReader(status)
    calls = [call for entry in entries[-MAX_CALLS:] for call in reader.read(entry)]
    return FlightDump(
        version=_text(value.get("version")),
        rank=_number(value.get("rank")),
        groups=tuple(_groups(value.get("pg_config"))),
        calls=tuple(calls),
        enqueued={group: status[number][0] for group, number in reader.group_numbers.items() if number in status},
        malformed=reader.malformed,
    )


class _CallReader:
    """Convert entries to calls. Many entries share frames and names, so equal frames and names become one object."""

    def __init__(self, status: dict[int, tuple[int, int]]):
        self.group_numbers: dict[tuple[str, str], int] = {}
        self.malformed = 0
        self._status = status
        self._frames: dict[int, Frame | None] = {}
        # By the identity of the list in the dump, which may be in many entries.
        self._stacks: dict[int, tuple[Frame, ...]] = {}
        self._sizes: dict[int, Sizes] = {}
        # By value, as each entry has a list of its own as a rule.
        self._equal: dict[object, Any] = {}
        self._point_to_point: dict[str, int | None] = {}

    def read(self, entry: Any) -> Iterator[Call]:
        call = self._call(entry) if isinstance(entry, dict) else None
        if call is None:
            self.malformed += 1
        elif not self._ends_messages(entry, call):
            yield call

    def _ends_messages(self, entry: dict[Any, Any], call: Call) -> bool:
        """Whether it is the end of a batch of send and recv, which has the number of the collective before them."""
        operation_number = _number(entry.get("op_id"))
        if call.is_point_to_point:
            self._point_to_point[call.group] = operation_number
        return call.operation == COALESCED and self._point_to_point.get(call.group, -1) == operation_number

    def _call(self, entry: dict[Any, Any]) -> Call | None:
        operation = _text(entry.get("profiling_name")).partition(":")[2]
        sequence = _number(entry.get("collective_seq_id", entry.get("seq_id")))
        if not operation or sequence is None:
            return None
        name, description = _group_of(entry.get("process_group", entry.get("pg_id")))
        number = _number(entry.get("pg_id"))
        if number is not None:
            self.group_numbers[name, description] = number
        is_point_to_point = entry.get("is_p2p") is True or operation.startswith(("send ", "recv "))
        state = entry.get("state")
        state = state if state in STATES else STATES[0]
        return Call(
            record=_number(entry.get("record_id")) or 0,
            group=name,
            description=description,
            sequence=sequence,
            operation=operation,
            is_point_to_point=is_point_to_point,
            **_peers(operation),
            input_sizes=self._shared_sizes(entry.get("input_sizes")),
            output_sizes=self._shared_sizes(entry.get("output_sizes")),
            input_types=_texts(entry.get("input_dtypes")),
            output_types=_texts(entry.get("output_dtypes")),
            state=state,
            is_finished=state == "completed" or self._is_completed(number, sequence, entry, is_point_to_point),
            created_ns=_number(entry.get("time_created_ns")) or None,
            timeout_ms=_number(entry.get("timeout_ms")),
            frames=self._shared_frames(entry.get("frames")),
        )

    def _is_completed(self, number: int | None, sequence: int, entry: dict[Any, Any], is_point_to_point: bool) -> bool:
        """gloo counts the messages of a group with its collectives, and retires them when they are done."""
        if is_point_to_point:
            return entry.get("retired") is True and str(entry.get("profiling_name", ""))[:5] == "gloo:"
        return number is not None and sequence <= self._status.get(number, (0, -1))[1]

    def _shared_sizes(self, value: Any) -> Sizes:
        if id(value) not in self._sizes:
            sizes = _sizes(value)
            self._sizes[id(value)] = self._equal.setdefault(sizes, sizes)
        return self._sizes[id(value)]

    def _shared_frames(self, value: Any) -> tuple[Frame, ...]:
        if not isinstance(value, list):
            return ()
        if id(value) not in self._stacks:
            frames = tuple(frame for frame in map(self._frame, value[:MAX_FRAMES]) if frame is not None)
            self._stacks[id(value)] = self._equal.setdefault(frames, frames)
        return self._stacks[id(value)]

    def _frame(self, value: Any) -> Frame | None:
        if id(value) not in self._frames:
            is_frame = isinstance(value, dict) and isinstance(value.get("filename"), str) and isinstance(value.get("name"), str)
            self._frames[id(value)] = Frame.of(value["filename"], value.get("line"), value["name"]) if is_frame else None
        return self._frames[id(value)]


def _group_of(value: Any) -> tuple[str, str]:
    if isinstance(value, list | tuple) and len(value) == 2:
        return _text(value[0]), _text(value[1])
    return (str(value) if _number(value) is not None else _text(value)), ""


def _peers(operation: str) -> dict[str, int | None]:
    match = _PEERS.fullmatch(operation)
    if match is None:
        return {"source": None, "destination": None}
    one, other = int(match[2]), int(match[3])
    return {"source": one, "destination": other} if match[1] == "send" else {"source": other, "destination": one}


def _groups(value: Any) -> Iterator[Group]:
    """torch writes the ranks as a text, `[0, 1]`; many groups may refer to the same one. gloo names no ranks."""
    if not isinstance(value, dict):
        return
    read: dict[str, tuple[int, ...]] = {}
    members = 0
    for name, details in list(value.items())[:MAX_GROUPS]:
        ranks = details.get("ranks") if isinstance(details, dict) else details
        if isinstance(ranks, list):
            ranks = str([rank for rank in ranks[:MAX_RANKS] if isinstance(rank, int) and 0 <= rank < MAX_RANKS])
        if not isinstance(ranks, str) or not isinstance(name, str):
            continue
        if ranks not in read:
            read[ranks] = _ranks(ranks)
        members += len(read[ranks])
        if read[ranks] and members <= MAX_MEMBERS:
            yield Group(_text(name), _text(details.get("desc")) if isinstance(details, dict) else "", read[ranks])


def _ranks(text: str) -> tuple[int, ...]:
    numbers = {int(match[0]) for match in _RANK_NUMBER.finditer(text[: 8 * MAX_RANKS])}
    return tuple(sorted(number for number in numbers if number < MAX_RANKS))


def _status(value: Any) -> dict[int, tuple[int, int]]:
    """The last collective enqueued and the last completed, by the number of the group; -1 is none."""
    numbers_by_group = {}
    for name, details in list(value.items())[:MAX_GROUPS] if isinstance(value, dict) else ():
        number = _written_number(name)
        if number is not None and isinstance(details, dict):
            last = [_written_number(details.get(f"last_{state}_collective")) for state in ("enqueued", "completed")]
            numbers_by_group[number] = (-1 if last[0] is None else last[0], -1 if last[1] is None else last[1])
    return numbers_by_group


def _sizes(value: Any) -> Sizes:
    tensors = value[:MAX_TENSORS] if isinstance(value, list) else ()
    return tuple(
        tuple(_number(size) or 0 for size in tensor[:MAX_DIMENSIONS]) for tensor in tensors if isinstance(tensor, list | tuple)
    )


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(_text(name) for name in value[:MAX_TENSORS]) if isinstance(value, list | tuple) else ()


def _text(value: Any) -> str:
    return printable(value[:TEXT_CHARACTERS], TEXT_CHARACTERS) if isinstance(value, str) else ""


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_NUMBER else None


def _written_number(value: Any) -> int | None:
    if isinstance(value, str):
        value = int(value) if _NUMBER.fullmatch(value) else None
    return _number(value)
