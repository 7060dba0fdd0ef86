"""Why a run stopped: the faults since its last step, causes before consequences.

When one rank dies, the other ranks wait for it. Ten minutes later they all print a time-out, srun prints an exit code and
torchrun a report. These lines are one failure. Its headline is the cause; the consequences are counted after it.

The order of the lines shows the cause only among faults with one kind: Slurm notices minutes later that a node is gone, and the
kernel writes to another file than the exceptions that follow. So `precedence` ranks the kinds of faults by how much they explain.
"""

from collections.abc import Iterable, Sequence

from lt_monitor.events.alert_findings import Finding, worst
from lt_monitor.events.records import MESSAGE_CHARACTERS, Record
from lt_monitor.runs.faults.advice import advice
from lt_monitor.runs.run_state import RunState, positive

MAXIMUM_NAMED = 8
# Step lines in a row without a number for a loss: the run does not recover.
NAN_STEPS = 3
SCHEDULER_FAULTS = ("preemption", "time-limit", "cancelled", "requeue")
# Roots that any error may follow, so that their place among the lines does not matter.
EXPLAINING = frozenset(
    {
        *("node-failure", "xid", "sxid", "ecc", "gpu-lost", "network-device", "host-out-of-memory", "shared-memory", "disk-full"),
        *("out-of-memory", "neuron-error", "nan", "evicted", "miscomputation", "filesystem"),
    }
)
_DEVICES = frozenset({"xid", "sxid", "hung-task"})
# Signals that ask a job to end.
ASKED = frozenset({1, 2, 10, 12, 15})
# Faults that show a failure in one part of a job, although they may be consequences in another part.
_FAILING = frozenset({"exit", "rendezvous", "traceback"})
# Operations that two ranks call differently for one transfer, or that stand for several.
_MESSAGES = ("SEND", "RECV", "COALESCED", "UNKNOWN")
_LAST = frozenset({"killed", "exit", "cancelled", "hyperpod"})


def precedence(fault: Record) -> int:
    """How much of a failure this fault may explain; the lowest is its cause, and of equals the first."""
    name, cause = fault["fault"], fault["cause"]
    if name in _DEVICES and (cause == "unknown" or fault["severity"] != "critical"):
        return 2
    if cause == "root":
        return 0 if name in EXPLAINING else 1
    if name == "nccl-timeout" or (cause == "unknown" and fault["severity"] == "critical"):
        return 3
    if name in ("nccl-error", "rendezvous") and fault["severity"] == "critical":
        return 4
    return 6 if name in _LAST else 5


def root_cause(faults: Iterable[Record]) -> Record | None:
    """The fault of a failure that explains the others, of its `faults` in the order of their lines."""
    all_faults = list(faults)
    # A program may log an exception with its causes, and survive it.
    ordered_faults = [fault for fault in all_faults if not fault.get("is_inner_cause")]
    cause = min(ordered_faults, key=precedence, default=None)
    if cause is not None and cause["fault"] == "cancelled" and (before := _failed_before(ordered_faults, cause)):
        cause = min(before, key=precedence)
    if cause is not None and cause["fault"] in SCHEDULER_FAULTS and ordered_faults[0]["fault"] == "nccl-timeout":
        # The scheduler came minutes later, to clear away a job that hung.
        return ordered_faults[0]
    return cause if cause is None else _innermost(all_faults, cause)


def _innermost(faults: Sequence[Record], outer: Record) -> Record:
    """The last cause that Java prints below an exception; `outer` itself if there is none."""
    innermost = outer
    for fault in faults[next(index for index, fault in enumerate(faults) if fault is outer) + 1 :]:
        if not fault.get("is_inner_cause") or fault["src"].get("file") != outer["src"].get("file"):
            break
        innermost = fault
    return innermost


def _failed_before(faults: Sequence[Record], cancelled: Record) -> list[Record]:
    """The failures before `cancelled`: when one part of a job fails, srun or a script cancels the other parts."""
    before = faults[: next(index for index, fault in enumerate(faults) if fault is cancelled)]
    ended = [fault for fault in before if fault["severity"] == "critical" and fault.get("signal") not in ASKED]
    return ended if any(fault["fault"] in _FAILING or fault["cause"] != "cascade" for fault in ended) else []


def with_mismatches(faults: Sequence[Record]) -> list[Record]:
    """Turn time-outs into mismatches if a process group's ranks were in different collectives at the same sequence number."""
    group_of = {
        fault["rank"]: fault["process_group"] for fault in faults if type(fault.get("rank")) is int and "process_group" in fault
    }
    calls: dict[tuple[object, object], dict[str, Record]] = {}
    for fault in faults:
        operation, rank = fault.get("operation"), fault.get("rank")
        if fault["fault"] != "nccl-timeout" or not isinstance(operation, str) or type(rank) is not int:
            continue
        if type(fault.get("sequence")) is int and not operation.startswith(_MESSAGES):
            calls.setdefault((fault["sequence"], fault.get("process_group", group_of.get(rank))), {}).setdefault(operation, fault)
    changed: dict[int, Record] = {}
    for (sequence, _), by_operation in calls.items():
        if len(by_operation) > 1 and len({fault["rank"] for fault in by_operation.values()}) > 1:
            calls_by_rank = ", ".join(f"rank {fault['rank']} is in {operation}" for operation, fault in by_operation.items())
            for fault in by_operation.values():
                message = f"at number {sequence} {calls_by_rank}: {fault['message']}"[:MESSAGE_CHARACTERS]
                changed[id(fault)] = fault | {"fault": "collective-mismatch", "cause": "unknown", "message": message}
    return [changed.get(id(fault), fault) for fault in faults]


def failure_findings(state: RunState) -> list[Finding]:
    """The findings about the faults since the last step, roots first; one for each kind of root."""
    faults = with_mismatches(state.faults)
    groups = sorted(_grouped(faults), key=lambda group: precedence(group[0]))
    reported = [group for group in groups if group[0]["cause"] == "root"] or groups[:1]
    cause = root_cause(faults)
    if cause is not None and cause is not reported[0][0]:
        reported = [group for group in groups if group[0] is cause] + reported
    followed = [group for group in groups if group not in reported]
    findings = [_finding(state, group) for group in reported]
    if findings and followed:
        first = findings[0]
        counts = {group[0]["fault"]: _count(group) for group in followed}
        then = ", ".join(f"{name} x{count}" if count > 1 else name for name, count in counts.items())
        fields = first.fields | {"followed_by": counts}
        findings[0] = Finding(first.rule, first.severity, first.run, first.key, f"{first.message}; then {then}", fields)
    return findings


def _grouped(faults: Sequence[Record]) -> list[list[Record]]:
    groups: dict[tuple[object, ...], list[Record]] = {}
    for fault in faults:
        groups.setdefault((fault["cause"], fault["fault"], fault.get("xid")), []).append(fault)
    return list(groups.values())


def _count(group: Sequence[Record]) -> int:
    """The number of ranks with this fault, or the number of its lines if the lines name no ranks."""
    return len({fault["rank"] for fault in group if "rank" in fault}) or len(group)


def _finding(state: RunState, group: Sequence[Record]) -> Finding:
    first = group[0]
    name, step = first["fault"], state.attempt.last_step
    fields: Record = {"attempt": len(state.attempts), "step": step, "count": _count(group), "cause": first["cause"]}
    fields |= {key: first[key] for key in ("rank", "node", "gpu", "xid", "action", "exit_code", "signal", "job") if key in first}
    fields |= {"file": first["src"]["file"], "offset": first["src"].get("offset"), "advice": advice(first).text}
    message = first["message"]
    place = _where(group)
    if name == "nccl-timeout":
        suspects, why = suspect_ranks(group, positive(state.arguments.get("world_size")))
        if suspects:
            fields["suspect_ranks"] = suspects
            message = f"first suspect {ranks_text(suspects)}: {why}; {message}"
    elif place:
        message = f"{place}: {message}"
    # Without steps, the line distinguishes one failure from the next.
    identity = step if step is not None or state.arguments else f"{first['src']['file']}:{first['src'].get('offset')}"
    key = f"{name}:{first.get('xid', '')}:{len(state.attempts)}:{identity}"
    return Finding(name, worst(fault["severity"] for fault in group), state.run, key, message, fields)


def suspect_ranks(timeouts: Iterable[Record], world_size: int | None) -> tuple[list[int], str]:
    """The ranks that the others probably waited for, and why: those that are behind, or silent. Empty when unknown."""
    by_rank: dict[int, Record] = {}
    for fault in timeouts:
        if type(fault.get("rank")) is int:
            # A rank may spread its report over several lines.
            by_rank[fault["rank"]] = by_rank.get(fault["rank"], {}) | fault
    for field, measure in (("last_completed", "last completed collective"), ("sequence", "timed out in collective")):
        numbers = {rank: fault[field] for rank, fault in by_rank.items() if type(fault.get(field)) is int}
        lowest = min(numbers.values(), default=None)
        behind = sorted(rank for rank, number in numbers.items() if number == lowest)
        if behind and len(behind) < len(numbers):
            return behind, f"{measure} {lowest}, others {min(number for number in numbers.values() if number != lowest)}"
    if world_size is not None and world_size <= 1 << 20 and by_rank and 2 * len(by_rank) > world_size:
        silent = sorted(set(range(world_size)) - set(by_rank))
        if silent:
            return silent, "all others report the time-out"
    return [], ""


def _where(group: Sequence[Record]) -> str:
    """On which ranks, or else nodes, the fault was."""
    ranks = sorted({fault["rank"] for fault in group if type(fault.get("rank")) is int})
    if ranks:
        return ranks_text(ranks)
    nodes = sorted({fault["node"] for fault in group if isinstance(fault.get("node"), str)})
    return f"node {', '.join(nodes[:MAXIMUM_NAMED])}{', ...' if len(nodes) > MAXIMUM_NAMED else ''}" if nodes else ""


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0-7, 12`."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    named = [str(begin) if begin == end else f"{begin}-{end}" for begin, end in spans[:MAXIMUM_NAMED]]
    more = ", ..." if len(spans) > MAXIMUM_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(named)}{more}"
