"""Join all ranks' dumps: for each process group, its ranks and their calls.

A group is identified by its name and its ranks, because `split_group` gives all its groups one name. If a dump names no ranks
(gloo), the ranks of a group are the ranks that called a collective in it, so a rank that never did cannot be missing. A dump is a
ring buffer: calls before a rank's first entry are unknown, not absent.
"""

import dataclasses
from collections.abc import Iterator, Mapping

from lt_monitor.hangs.flight_recorder import COALESCED, Call, FlightDump
from lt_monitor.hangs.stack_dumps import StackDump

DAY_NS = 86_400_000_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class GroupName:
    """`ranks` is empty where no dump says them."""

    name: str
    description: str
    ranks: tuple[int, ...]


@dataclasses.dataclass
class GroupCalls:
    """The calls in a group. A coalesced collective is several calls with the same number.

    `enqueued` has the numbers of the ranks' last collectives.
    """

    name: GroupName
    collectives: dict[int, dict[int, list[Call]]] = dataclasses.field(default_factory=dict)
    messages: dict[int, list[Call]] = dataclasses.field(default_factory=dict)
    enqueued: dict[int, int] = dataclasses.field(default_factory=dict)

    @property
    def members(self) -> tuple[int, ...]:
        return self.name.ranks or tuple(sorted(self.collectives.keys() | self.messages.keys()))

    def add(self, rank: int, call: Call) -> None:
        if call.is_point_to_point:
            self.messages.setdefault(rank, []).append(call)
        else:
            self.collectives.setdefault(rank, {}).setdefault(call.sequence, []).append(call)
            self.enqueued[rank] = max(self.enqueued.get(rank, -1), call.sequence)

    def calls(self, sequence: int) -> dict[int, list[Call]]:
        return {rank: by_number[sequence] for rank, by_number in self.collectives.items() if sequence in by_number}

    def last(self, rank: int) -> Call | None:
        by_number = self.collectives.get(rank)
        return by_number[max(by_number)][0] if by_number else None

    def first_unfinished(self) -> int | None:
        unfinished = (
            sequence
            for by_number in self.collectives.values()
            for sequence, calls in by_number.items()
            if not all(call.is_finished for call in calls)
        )
        return min(unfinished, default=None)


@dataclasses.dataclass(frozen=True)
class Job:
    """The dumps by rank. `written_ns` is when the last flight recorder dump was written, as far as its file says."""

    flights: Mapping[int, FlightDump]
    stacks: Mapping[int, StackDump]
    written_ns: int | None = None

    @property
    def ranks(self) -> list[int]:
        """All ranks of the job that any dump names."""
        named = {rank for dump in self.flights.values() for group in dump.groups for rank in group.ranks}
        return sorted(named | self.flights.keys() | self.stacks.keys())

    @property
    def dumped_ns(self) -> int | None:
        """None when the files have been copied since, or a clock is wrong: later than the last call, and not by a day."""
        newest = max((call.created_ns or 0 for dump in self.flights.values() for call in dump.calls), default=0)
        return self.written_ns if self.written_ns and newest <= self.written_ns < newest + DAY_NS else None

    def groups(self) -> list[GroupCalls]:
        """Every group that a rank called something in, in the order of their names."""
        calls_by_group: dict[GroupName, GroupCalls] = {}
        for rank, dump in self.flights.items():
            # A name with a thousand ranks is hashed once for a dump, not for a call.
            named = {
                (group.name, group.description): GroupName(group.name, group.description, group.ranks) for group in dump.groups
            }
            calls_of_rank: dict[tuple[str, str], GroupCalls] = {}
            for call in dump.calls:
                key = call.group, call.description
                if key not in calls_of_rank:
                    name = named.get(key) or GroupName(*key, ())
                    calls_of_rank[key] = calls_by_group.setdefault(name, GroupCalls(name))
                calls_of_rank[key].add(rank, call)
            for key, sequence in dump.enqueued.items():
                if key in calls_of_rank:
                    calls_of_rank[key].enqueued[rank] = max(calls_of_rank[key].enqueued.get(rank, -1), sequence)
        return sorted(calls_by_group.values(), key=lambda group: (len(group.name.name), group.name.name, group.name.ranks))

    def last_call(self, rank: int) -> Call | None:
        dump = self.flights.get(rank)
        return max(dump.calls, key=lambda call: call.record, default=None) if dump else None

    def first_unfinished(self, rank: int) -> Call | None:
        """The call that a rank's GPU waits in."""
        unfinished = (call for call in self.flights[rank].calls if not call.is_finished)
        return min(unfinished, key=lambda call: call.record, default=None)

    def wrapped(self, rank: int) -> bool:
        """Whether a rank has called more than its dump has room for."""
        calls = self.flights[rank].calls
        return bool(calls) and min(call.record for call in calls) > 0


def operations(calls: list[Call]) -> Iterator[Call]:
    """Yield the calls of a collective without the entry that only ends a coalesced collective."""
    return (call for call in calls if call.operation != COALESCED or len(calls) == 1)
