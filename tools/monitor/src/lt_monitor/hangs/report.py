"""`lt-monitor stuck`: a line for each finding, and a line for each place where ranks stand.

A rank with a stack is shown by its main thread, a rank without one by the call it waits in, or by its last call. Frames of
libraries are skipped, because all waiting ranks are in the same lines of torch; `--json` has all frames.
"""

import dataclasses
import datetime
from collections.abc import Iterable, Sequence
from typing import Any

from lt_monitor.hangs.findings import ABSENT, BEHIND, ELSEWHERE, MISMATCH, MISSING, UNFINISHED, UNMATCHED, Finding, find
from lt_monitor.hangs.flight_recorder import Call
from lt_monitor.hangs.process_groups import GroupName, Job
from lt_monitor.hangs.stack_dumps import Frame, place
from lt_shared.console import counted

ALSO_SHOWN = 8
RANGES_SHOWN = 20
NOTHING = "nothing is missing: every collective in the dumps is finished"
ONLY_STACKS = "no flight recorder dump: only where the ranks stand is known"


@dataclasses.dataclass(frozen=True)
class Standing:
    """Where a rank is; `source` says how that is known."""

    rank: int
    frames: tuple[Frame, ...]
    source: str

    @property
    def in_words(self) -> str:
        frame = place(self.frames)
        return f"{'unknown' if frame is None else frame} ({self.source})"


@dataclasses.dataclass(frozen=True)
class Report:
    job: Job
    findings: list[Finding]

    @property
    def is_stuck(self) -> bool:
        return any(finding.is_stuck for finding in self.findings)

    @property
    def suspects(self) -> list[int]:
        return sorted({rank for finding in self.findings for rank in finding.suspects})

    def lines(self) -> list[str]:
        head = [f"suspect: {_named(self.suspects)}"] if self.suspects else []
        return [*head, *self._finding_lines(), *self._standing_lines(), *self._malformed()]

    def _finding_lines(self) -> list[str]:
        """The causes, each followed by what else they hold up."""
        lines: list[str] = []
        reported_ranks: set[int] = set()
        more: list[str] = []
        joined = [finding for finding in self.findings if finding.is_consequence and finding.kind == UNFINISHED]
        for finding in self.findings:
            if finding.is_consequence and finding.kind == UNFINISHED:
                continue
            if finding.is_consequence or (finding.suspects and reported_ranks.issuperset(finding.suspects)):
                more.append(f"  also {in_words(finding)}")
            else:
                lines.append(in_words(finding))
                reported_ranks.update(finding.suspects)
        if any(finding.is_circular for finding in self.findings):
            lines.append("these ranks wait for each other: they call collectives in different orders, or one stands elsewhere")
        if len(more) > ALSO_SHOWN:
            more[ALSO_SHOWN:] = [f"  and {counted(len(more) - ALSO_SHOWN, 'more finding')}"]
        if joined:
            more.append(f"  also {counted(len(joined), 'collective')} that all ranks of the group have joined")
        return [*lines, *more] or [NOTHING if self.job.flights else ONLY_STACKS]

    def _standing_lines(self) -> list[str]:
        return [f"{_named(ranks)}: {text}" for text, ranks in self._together()]

    def to_record(self) -> dict[str, Any]:
        return {
            "v": 1,
            "kind": "stuck",
            "stuck": self.is_stuck,
            "suspects": self.suspects,
            "ranks": len(self.job.ranks),
            "dumps": {"flight_recorder": sorted(self.job.flights), "stacks": sorted(self.job.stacks)},
            "findings": [_finding_record(finding) for finding in self.findings],
            "standing": [_standing_record(standing) for standing in self._standings()],
        }

    def _standings(self) -> list[Standing]:
        dumped = sorted(self.job.flights.keys() | self.job.stacks.keys())
        return [standing for rank in dumped for standing in self._of_rank(rank)]

    def _of_rank(self, rank: int) -> Iterable[Standing]:
        stack = self.job.stacks.get(rank)
        if stack is not None and stack.main is not None:
            name = f": {stack.main.name}" if stack.main.name else ""
            return [Standing(rank, stack.main.frames, f"{stack.source}{name}")]
        call, waits = self._call(rank)
        if call is None:
            return [Standing(rank, (), "no call in its dump")]
        return [Standing(rank, call.frames, f"{'waits in' if waits else 'its last call is'} {call}")]

    def _call(self, rank: int) -> tuple[Call | None, bool]:
        """The first call that is not finished, else the last one."""
        waiting = self.job.first_unfinished(rank)
        return (waiting, True) if waiting else (self.job.last_call(rank), False)

    def _together(self) -> list[tuple[str, list[int]]]:
        ranks_by_place: dict[str, list[int]] = {}
        for standing in self._standings():
            ranks_by_place.setdefault(standing.in_words, []).append(standing.rank)
        return sorted(ranks_by_place.items(), key=lambda place: (-len(place[1]), place[1]))

    def _malformed(self) -> list[str]:
        return [
            f"{_named([rank])}: {counted(dump.malformed, 'malformed entry').replace('entrys', 'entries')} left out of its dump"
            for rank, dump in self.job.flights.items()
            if dump.malformed
        ]


def report(job: Job) -> Report:
    return Report(job, find(job))


def in_words(finding: Finding) -> str:
    if not finding.operation and finding.kind == ABSENT:
        return f"no dump of {_named(finding.absent)}: whether the run waits for {_them(finding.absent)} is unknown"
    of = f"{_call_name(finding)} of {_group(finding.group, finding.members)}"
    if finding.kind == MISMATCH:
        calls = "; ".join(f"{_named(ranks)} {'call' if len(ranks) > 1 else 'calls'} {text}" for ranks, text in finding.variants)
        return f"mismatch in {of}: {calls}{f'; {finding.order}' if finding.order else ''}"
    if finding.kind == ELSEWHERE:
        there = f"{len(finding.waiting)} of {counted(len(finding.members), 'rank')}"
        return f"{_named(finding.missing)} {_is(finding.missing)} not where {there} stand"
    waiting = f"{len(finding.waiting)} of {counted(len(finding.members), 'rank')} {_waits(finding)}"
    absent = f"no dump of {_named(finding.absent)}" if finding.absent else ""
    if finding.kind == MISSING:
        last = "; ".join(map(_last_in_words, finding.last))
        parts = [f"{_named(finding.missing)} {_is(finding.missing)} missing in {of}: {waiting}", last, absent]
        return "; ".join(part for part in parts if part)
    if finding.kind == ABSENT:
        return f"{absent}, which {_is(finding.absent)} the first suspect{_s(finding.absent)} in {of}: {waiting}"
    if finding.kind == UNMATCHED:
        lacks = f"{_named(finding.missing)} has not called" if finding.missing else f"{absent}, which may not have called"
        half = "send" if finding.operation.startswith("recv") else "recv"
        of = _group(finding.group, finding.members)
        return f"{lacks} the {half} for {finding.operation} of {of}: {_named(finding.waiting)} waits{_since(finding)}"
    if finding.kind == BEHIND:
        have = f"{_named(finding.finished)} {'has' if len(finding.finished) == 1 else 'have'} finished"
        return f"{_named(finding.waiting)} {_is(finding.waiting)} behind in {of}, which {have}: {waiting}"
    finished = f", {len(finding.finished)} have finished" if finding.finished else ""
    nobody = "no rank" if finding.group.ranks else "no rank with a dump"
    return f"{nobody} is missing in {of}: {waiting}{finished}"


def _call_name(finding: Finding) -> str:
    return finding.operation if finding.sequence is None else f"{finding.operation} #{finding.sequence}"


def _group(group: GroupName, members: Sequence[int]) -> str:
    described = [group.description] if group.description else []
    return f"process group {group.name} ({', '.join([*described, _named(members)])})"


def _waits(finding: Finding) -> str:
    return f"{'waits' if len(finding.waiting) == 1 else 'wait'}{_since(finding)}"


def _since(finding: Finding) -> str:
    if finding.seconds is not None:
        return f" for {_duration(finding.seconds)}"
    if finding.since_ns is not None:
        return f" since {datetime.datetime.fromtimestamp(finding.since_ns // 10**9, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"
    return ""


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _last_in_words(last: tuple[tuple[int, ...], int | None, str]) -> str:
    ranks, number, state = last
    if number is None or number < 0:
        return f"{_named(ranks)} {'has' if len(ranks) == 1 else 'have'} no collective there"
    return f"the last collective of {_named(ranks)} there is #{number}{f' ({state})' if state else ''}"


def _named(ranks: Sequence[int]) -> str:
    return f"rank{_s(ranks)} {ranges(ranks)}"


def _s(ranks: Sequence[int]) -> str:
    return "" if len(ranks) == 1 else "s"


def _is(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _them(ranks: Sequence[int]) -> str:
    return "it" if len(ranks) == 1 else "them"


def ranges(ranks: Sequence[int]) -> str:
    """`0-2,4-7`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    shown = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs[:RANGES_SHOWN])
    return f"{shown},..." if len(runs) > RANGES_SHOWN else shown


def _finding_record(finding: Finding) -> dict[str, Any]:
    group = {"name": finding.group.name, "description": finding.group.description, "ranks": list(finding.members)}
    values = {
        "finding": finding.kind,
        "process_group": group,
        "operation": finding.operation,
        "sequence": finding.sequence,
        "waiting": list(finding.waiting),
        "finished": list(finding.finished),
        "missing": list(finding.missing),
        "absent": list(finding.absent),
        "calls": [{"ranks": list(ranks), "call": text} for ranks, text in finding.variants],
        "last": [{"ranks": list(ranks), "sequence": number, "state": state} for ranks, number, state in finding.last],
        "seconds": finding.seconds,
        "consequence": finding.is_consequence,
        "circular": finding.is_circular,
        "stuck": finding.is_stuck,
        "message": in_words(finding),
    }
    return {key: value for key, value in values.items() if value not in (None, "", [])}


def _standing_record(standing: Standing) -> dict[str, Any]:
    frames = [{key: value for key, value in dataclasses.asdict(frame).items() if value is not None} for frame in standing.frames]
    return {"rank": standing.rank, "source": standing.source, "frames": frames}
