"""The faults of many ranks: which ones stay, and which ones outlast a step in another log."""

from collections import Counter
from collections.abc import Sequence

from lt_monitor.events.records import Record, ends_job
from lt_monitor.events.steps import epoch_seconds


def faults_after_step(faults: Sequence[Record], step: Record, step_time: float | None, now: float) -> list[Record]:
    """Return the faults that still explain an end after a step, which was read at `now`.

    A step shows that the run goes on. But logs of ranks are read one after the other, so a step in one log says nothing about the
    fault of a rank in another log, which the times order, or that has just been read.
    """
    if not faults:
        return []
    return [
        fault
        for fault in faults
        if fault.get("rank") is not None
        and fault["src"]["file"] != step["src"]["file"]
        and _is_later(epoch_seconds(fault.get("time")), step_time, fault.get("seen") == now)
    ]


def _is_later(fault_time: float, step_time: float | None, is_of_same_pass: bool) -> bool:
    return is_of_same_pass if step_time is None or fault_time != fault_time else fault_time >= step_time


def add_fault(faults: list[Record], fault: Record, most: int) -> None:
    """Append a fault. Of more than `most`, a fault of a new kind takes the place of the latest one of the most frequent kind.

    So the cause stays that one rank of a thousand tells after the others' time-outs.
    """
    if len(faults) < most:
        faults.append(fault)
        return
    kind = _kind(fault)
    if kind == _kind(faults[-1]):
        return
    counts = Counter(map(_kind, faults))
    if kind in counts and (ends_job(faults[-1]) or not ends_job(fault)):
        return
    frequent = counts.most_common(1)[0][0]
    del faults[max(index for index, other in enumerate(faults) if _kind(other) == frequent)]
    faults.append(fault)


def _kind(fault: Record) -> tuple[object, ...]:
    return fault["fault"], fault["cause"], fault.get("xid")
