"""Find the faults of process groups, and separate causes from consequences.

In a group, the first unfinished collective decides: a rank that has not enqueued it is missing, a rank without a dump may be
missing. Calls with the same number that differ are a mismatch, finished or not. If other ranks have finished a rank's first
unfinished call, that rank is behind: its GPU has stopped. torch's analyzer looks at every group separately, so a job with several
kinds of parallelism shows a missing rank in each group. Here, a finding is a consequence if all its missing ranks wait in another
finding. If every finding is a consequence, the ranks wait for each other in a circle: they call collectives in different orders.
"""

import collections
import dataclasses
from collections.abc import Iterator, Sequence

from lt_monitor.hangs.flight_recorder import Call
from lt_monitor.hangs.process_groups import GroupCalls, GroupName, Job, operations
from lt_monitor.hangs.stack_dumps import place

MISSING, ABSENT, MISMATCH, UNFINISHED, UNMATCHED, ELSEWHERE, BEHIND = (
    "missing", "absent", "mismatch", "unfinished", "unmatched", "elsewhere", "behind",
)  # fmt: skip
# No rank can finish these before every rank of the group has joined in on its GPU.
_JOINT = ("all_reduce", "allreduce", "all_gather", "_all_gather", "allgather", "_allgather", "barrier",
          "reduce_scatter", "_reduce_scatter", "all_to_all", "alltoall")  # fmt: skip
# A dump of a healthy run has calls that are on their way.
ON_THEIR_WAY_SECONDS = 30.0
# Their sizes, or types, may differ from rank to rank.
_OTHER_INPUTS = ("all_to_all", "alltoall", "scatter")
_OTHER_OUTPUTS = ("all_to_all", "alltoall", "gather")


@dataclasses.dataclass(frozen=True)
class Finding:
    """`missing` have a dump without the call, `absent` no dump. `variants` are the calls that differ, the most common first."""

    kind: str
    group: GroupName
    operation: str = ""
    sequence: int | None = None
    members: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
    variants: tuple[tuple[tuple[int, ...], str], ...] = ()
    order: str = ""
    seconds: float | None = None
    since_ns: int | None = None
    last: tuple[tuple[tuple[int, ...], int | None, str], ...] = ()
    suspects: tuple[int, ...] = ()
    is_consequence: bool = False
    is_circular: bool = False

    @property
    def blocking(self) -> tuple[int, ...]:
        return self.missing + self.absent

    @property
    def is_stuck(self) -> bool:
        """Whether it is more than a call that was on its way when the dump was written."""
        return self.kind not in (UNFINISHED, BEHIND) or self.seconds is None or self.seconds >= ON_THEIR_WAY_SECONDS

    @property
    def odd(self) -> tuple[int, ...]:
        """The ranks of a mismatch that differ from the majority; empty if no call has a majority."""
        counts = [len(ranks) for ranks, _ in self.variants]
        if not counts or 2 * counts[0] <= sum(counts):
            return ()
        return tuple(sorted(rank for ranks, _ in self.variants[1:] for rank in ranks))


def find(job: Job) -> list[Finding]:
    """All findings: causes first, mismatches before others, then by the number of blocking ranks, unfinished calls last."""
    findings = [finding for group in job.groups() for finding in _of_group(group, job)]
    if not job.flights:
        findings = list(_elsewhere(job))
    elif not findings:
        findings = list(_without_dump(job))
    return sorted(_with_causes(findings, job), key=_rank_of)


def _rank_of(finding: Finding) -> tuple[bool, bool, bool, int]:
    return finding.is_consequence, finding.kind != MISMATCH, finding.kind == UNFINISHED, len(finding.blocking)


def _of_group(group: GroupCalls, job: Job) -> Iterator[Finding]:
    mismatch = _mismatch(group, job)
    sequence = group.first_unfinished()
    if mismatch is not None:
        yield mismatch
    if sequence is not None and (mismatch is None or mismatch.sequence is None or sequence < mismatch.sequence):
        yield _unfinished(group, sequence, job)
    yield from _unmatched(group, job)


def _unfinished(group: GroupCalls, sequence: int, job: Job) -> Finding:
    calls = group.calls(sequence)
    members, absent = group.members, tuple(rank for rank in group.members if rank not in job.flights)
    missing = tuple(
        rank for rank in members if rank in job.flights and rank not in calls and group.enqueued.get(rank, -1) < sequence
    )
    waiting = tuple(sorted(rank for rank, rank_calls in calls.items() if not all(call.is_finished for call in rank_calls)))
    shown = calls[waiting[0]][0]
    joined = BEHIND if _are_behind(waiting, shown, group, job) else UNFINISHED
    finding = Finding(
        kind=MISSING if missing else ABSENT if absent else joined,
        group=group.name,
        operation=shown.operation,
        sequence=sequence,
        members=members,
        waiting=waiting,
        finished=tuple(sorted({*(members if joined == BEHIND else calls)}.difference(waiting, missing, absent))),
        missing=missing,
        absent=absent,
        last=_last_calls(group, missing),
    )
    return _timed(finding, [call for rank in waiting for call in calls[rank]], job)


def _are_behind(waiting: tuple[int, ...], call: Call, group: GroupCalls, job: Job) -> bool:
    """Whether `waiting` are held up by nothing else, while other ranks of the group have finished this call.

    Newer dumps leave finished calls out, so a rank that has gone on to later numbers has finished it, too.
    """
    if len(waiting) == len(group.members) or not call.operation.startswith(_JOINT):
        return False
    firsts = [job.first_unfinished(rank) for rank in waiting]
    return all(first is not None and (first.group, first.sequence) == (call.group, call.sequence) for first in firsts)


def _timed(finding: Finding, calls: Sequence[Call], job: Job) -> Finding:
    since = min((call.created_ns for call in calls if call.created_ns), default=None)
    dumped = job.dumped_ns
    seconds = (dumped - since) / 1e9 if dumped is not None and since is not None else None
    return dataclasses.replace(finding, since_ns=since, seconds=seconds)


def _last_calls(group: GroupCalls, ranks: Sequence[int]) -> tuple[tuple[tuple[int, ...], int | None, str], ...]:
    """Return the ranks' last collectives as (ranks, number, state); ranks with equal number and state share an entry."""
    ranks_by_state: dict[tuple[int | None, str], list[int]] = {}
    for rank in ranks:
        last = group.last(rank)
        number = group.enqueued.get(rank)
        state = last.state_in_words if last is not None and last.sequence == number else ""
        ranks_by_state.setdefault((number, state), []).append(rank)
    return tuple((tuple(ranks_in_state), number, state) for (number, state), ranks_in_state in ranks_by_state.items())


def _mismatch(group: GroupCalls, job: Job) -> Finding | None:
    """Find the number of the first call that differs between ranks.

    The oldest entry of a full ring is skipped, because it may be half of a coalesced call.
    """
    by_rank = group.collectives
    last_partial = max((min(by_number) for rank, by_number in by_rank.items() if by_number and job.wrapped(rank)), default=-1)
    numbers = sorted({number for by_number in by_rank.values() for number in by_number if number > last_partial})
    for number in numbers:
        calls = group.calls(number)
        signatures = {rank: _signature(rank_calls) for rank, rank_calls in calls.items()}
        if len(set(signatures.values())) > 1:
            return _mismatch_at(group, number, calls, signatures, job)
    return None


_Signature = tuple[tuple[object, ...], ...]


def _mismatch_at(
    group: GroupCalls, number: int, calls: dict[int, list[Call]], signatures: dict[int, _Signature], job: Job
) -> Finding:
    by_signature: dict[_Signature, list[int]] = {}
    for rank in sorted(signatures):
        by_signature.setdefault(signatures[rank], []).append(rank)
    ordered = sorted(by_signature.values(), key=len, reverse=True)
    waiting = tuple(sorted(rank for rank, rank_calls in calls.items() if not all(call.is_finished for call in rank_calls)))
    finding = Finding(
        kind=MISMATCH,
        group=group.name,
        operation=calls[ordered[0][0]][0].operation,
        sequence=number,
        members=group.members,
        waiting=waiting,
        finished=tuple(sorted(calls.keys() - set(waiting))),
        absent=(),
        variants=tuple((tuple(ranks), _in_words(calls[ranks[0]])) for ranks in ordered),
        order=_order(group, number, ordered[0][0], ordered[1][0]),
    )
    return _timed(finding, [call for rank in waiting for call in calls[rank]], job)


def _signature(calls: list[Call]) -> _Signature:
    """The properties of a call that must agree on all ranks. The types of empty inputs or outputs may differ."""
    call_signatures = []
    for call in operations(calls):
        is_uneven = "coalesced" in call.operation.lower() or len(calls) > 1
        has_input = not call.operation.startswith(_OTHER_INPUTS) and not is_uneven
        has_output = not call.operation.startswith(_OTHER_OUTPUTS) and not is_uneven
        call_signatures.append(
            (
                call.operation,
                call.input_sizes if has_input else None,
                call.output_sizes if has_output else None,
                call.input_types if has_input and any(call.input_sizes) else None,
                call.output_types if has_output and any(call.output_sizes) else None,
            )
        )
    return tuple(call_signatures)


def _in_words(calls: list[Call]) -> str:
    first = next(operations(calls), calls[0])
    more = f" and {len(calls) - 1} more" if len(calls) > 1 else ""
    types = "/".join(dict.fromkeys((*first.input_types, *first.output_types)))
    into = f" to {_sizes(first.output_sizes)}" if first.output_sizes != first.input_sizes else ""
    return f"{first.operation} of {_sizes(first.input_sizes)}{into}{f' {types}' if types else ''}{more}"


def _sizes(sizes: tuple[tuple[int, ...], ...]) -> str:
    shown = ", ".join("x".join(map(str, one)) or "a number" for one in sizes[:3])
    return f"{shown or 'nothing'}{f' and {len(sizes) - 3} more' if len(sizes) > 3 else ''}"


def _order(group: GroupCalls, number: int, usual: int, odd: int) -> str:
    """Say whether the two ranks' calls match again when one rank's calls are shifted by one."""

    def signature(rank: int, at: int) -> _Signature | None:
        calls = group.collectives[rank].get(at)
        return None if calls is None else _signature(calls)

    if signature(odd, number + 1) is not None and signature(odd, number + 1) == signature(usual, number):
        return f"rank {odd} makes a call more than rank {usual}, or the same ones in another order"
    if signature(usual, number + 1) is not None and signature(usual, number + 1) == signature(odd, number):
        return f"rank {odd} leaves out a call that rank {usual} makes, or makes the same ones in another order"
    return ""


def _unmatched(group: GroupCalls, job: Job) -> Iterator[Finding]:
    """Messages that wait for a rank that has not called their other half."""
    members = group.members
    pending = {rank: [call for call in calls if not call.is_finished] for rank, calls in group.messages.items()}
    for rank, calls in pending.items():
        reported_peers: set[int] = set()
        halves: collections.Counter[tuple[bool, int]] = collections.Counter()
        for call in calls:
            if call.source is None or call.destination is None or max(call.source, call.destination) >= len(members):
                continue
            is_send = call.operation.startswith("send")
            peer = members[call.destination if is_send else call.source]
            halves[is_send, peer] += 1
            peer_halves = sum(
                (other.source, other.destination) == (call.source, call.destination) and other.operation[:4] != call.operation[:4]
                for other in pending.get(peer, ())
            )
            if halves[is_send, peer] <= peer_halves or peer in reported_peers or peer == rank:
                continue
            reported_peers.add(peer)
            missing, absent = ((peer,), ()) if peer in job.flights else ((), (peer,))
            finding = Finding(UNMATCHED, group.name, call.operation, None, members, (rank,), (), missing, absent)
            yield _timed(finding, [call], job)


def _without_dump(job: Job) -> Iterator[Finding]:
    """If a rank has no dump, it may be the rank that hangs."""
    absent = tuple(rank for rank in job.ranks if rank not in job.flights)
    if absent:
        yield Finding(ABSENT, GroupName("", "", ()), members=tuple(job.ranks), absent=absent)


def _elsewhere(job: Job) -> Iterator[Finding]:
    """From stacks alone: find ranks whose place differs from the majority's."""
    places: dict[str, list[int]] = {}
    for rank, dump in sorted(job.stacks.items()):
        frame = place(dump.main.frames) if dump.main else None
        places.setdefault(str(frame), []).append(rank)
    ordered = sorted(places.items(), key=lambda place: len(place[1]), reverse=True)
    if len(ordered) > 1 and 2 * len(ordered[0][1]) > len(job.stacks):
        odd = tuple(sorted(rank for _, ranks in ordered[1:] for rank in ranks))
        most = tuple(ordered[0][1])
        yield Finding(ELSEWHERE, GroupName("", "", ()), members=tuple(job.ranks), waiting=most, missing=odd)


def _held_by(behind: set[int], job: Job) -> set[int]:
    """The ranks that are behind, and every rank that waits for them, directly or through other ranks."""
    firsts = {rank: call for rank in job.flights if (call := job.first_unfinished(rank)) is not None}
    members = {(group.name.name, group.name.description): set(group.members) for group in job.groups()}
    held = set(behind)
    while more := {
        rank for rank, call in firsts.items() if rank not in held and held & members.get((call.group, call.description), set())
    }:
        held |= more
    return held


def _with_causes(findings: list[Finding], job: Job) -> list[Finding]:
    behind = {rank for finding in findings if finding.kind == BEHIND and finding.is_stuck for rank in finding.waiting}
    holding = [finding for finding in findings if finding.blocking or finding.kind == MISMATCH]
    # Rank -> number of holding findings that have it among the waiting ranks.
    waits = collections.Counter(rank for finding in holding for rank in finding.waiting)
    if behind:
        waits.update(_held_by(behind, job))
    marked = _with_held([_with_suspects(finding, waits) for finding in findings], set(waits))
    if not holding or any(finding.kind == MISMATCH or finding.suspects for finding in marked):
        return marked
    return [
        dataclasses.replace(finding, is_consequence=not finding.blocking, is_circular=bool(finding.blocking))
        for finding in marked
    ]


def _with_suspects(finding: Finding, waits: collections.Counter[int]) -> Finding:
    """A rank that waits in another finding is held up itself."""
    if finding.kind in (MISMATCH, UNFINISHED):
        return dataclasses.replace(finding, suspects=finding.odd)
    if finding.kind == BEHIND:
        return dataclasses.replace(finding, suspects=finding.waiting if finding.is_stuck else ())
    free = tuple(rank for rank in finding.blocking if waits[rank] <= (rank in finding.waiting))
    return dataclasses.replace(finding, suspects=free, is_consequence=not free)


def _with_held(findings: list[Finding], held: set[int]) -> list[Finding]:
    """Mark unfinished calls as consequences: a call that all ranks joined cannot end while one rank is held up elsewhere."""
    marked = dict(enumerate(findings))
    unfinished = {at for at, finding in marked.items() if finding.kind == UNFINISHED}
    while reached := {at for at in unfinished if held.intersection(marked[at].waiting)}:
        for at in reached:
            held.update(marked[at].waiting)
            marked[at] = dataclasses.replace(marked[at], is_consequence=True)
        unfinished -= reached
    return list(marked.values())
