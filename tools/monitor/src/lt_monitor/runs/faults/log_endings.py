"""What the last lines of a log say that no format reads: a shell's word, an error in words alone, losses without numbers."""

from collections.abc import Sequence
from typing import Any

from lt_monitor.events.records import MESSAGE_CHARACTERS, Record
from lt_monitor.logs.formats import last_words
from lt_monitor.logs.log_tail import LogTail
from lt_monitor.runs.faults.failure_causes import ASKED, NAN_STEPS

CONTEXT_BYTES = 1 << 13


def recovered(tail: LogTail) -> tuple[int, int]:
    """The offset before which faults are over (two steps or bars follow), and the offset of the last step or bar."""
    steps = [(record["src"]["offset"], record["step"]) for record in tail.records if record["kind"] == "step"]
    pairs = [_last_two(steps), _last_two(tail.progress)]
    return max(pair[0] for pair in pairs), max(pair[1] for pair in pairs)


def _last_two(marks: Sequence[tuple[int, Any]]) -> tuple[int, int]:
    """The offsets of the last two marks that differ, -1 for one that is not there."""
    if not marks:
        return -1, -1
    last = marks[-1][1]
    before = next((offset for offset, mark in reversed(marks) if mark != last), -1)
    return before, marks[-1][0]


def last_word(tail: LogTail, faults: Sequence[Record]) -> list[Record]:
    """The shell's message about a program that a signal ended, if it is the last line."""
    begin = tail.size - CONTEXT_BYTES
    signalled = last_words.signalled(tail.context(begin, tail.size))
    if signalled is None or any(fault["fault"] == "killed" for fault in faults):
        return []
    word, number = signalled
    text = tail.text(begin, tail.size)
    line_begin = text.rfind(b"\n", 0, text.rfind(word)) + 1
    source = {"file": tail.shown, "offset": max(0, begin) + line_begin}
    return [_fault("killed", "cascade" if number in ASKED else "unknown", word.decode(), source, signal=number)]


def last_error(tail: LogTail) -> Record | None:
    """The error that the last lines tell of in a form that no format knows, if no steps follow it."""
    error = last_words.last_error(_context(tail))
    return None if error is None else _fault_of_line(tail, *error)


def telling(tail: LogTail) -> Record | None:
    """Return a failure that the last lines tell of in words alone, if no steps follow them."""
    line = last_words.telling(_context(tail))
    return None if line is None else _fault_of_line(tail, line, "unknown", "unknown")


def _context(tail: LogTail) -> bytes:
    return tail.context(max(0, tail.size - CONTEXT_BYTES), tail.size)


def _fault_of_line(tail: LogTail, line: bytes, name: str, cause: str) -> Record | None:
    """Return the fault that a line near the end tells of; None if a format has read it, or if steps follow it."""
    begin = max(0, tail.size - CONTEXT_BYTES)
    raw = tail.text(begin, tail.size)
    at = begin + raw.rfind(b"\n", 0, max(0, raw.rfind(line))) + 1
    is_known = any(record["kind"] == "fault" and record["src"].get("offset") == at for record in tail.records)
    if is_known or at < max(recovered(tail)):
        return None
    message = line.decode(errors="replace").strip()[:MESSAGE_CHARACTERS]
    return _fault(name, cause, message, {"file": tail.shown, "offset": at})


def silenced(tails: Sequence[LogTail], message: str) -> Record:
    """Return the failure of a job that was ended without a word, with the last line of its longest log."""
    tail = max(tails, key=lambda tail: tail.size)
    text = tail.text(tail.size - CONTEXT_BYTES, tail.size).rstrip()
    at = max(0, tail.size - CONTEXT_BYTES) + max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
    return _fault("unknown", "unknown", message, {"file": tail.shown, "offset": at}, action="silent")


def nan(tail: LogTail) -> Record | None:
    """Steps at the end whose loss is no number."""
    logged = [(offset, text) for offset, text in tail.progress if text.startswith(b"{")][-NAN_STEPS:]
    if len(logged) == NAN_STEPS and all(_is_without_number(text) for _, text in logged):
        source = {"file": tail.shown, "offset": logged[0][0]}
        return _fault("nan", "root", f"the last {NAN_STEPS} losses are not a number", source)
    message = f"the loss of the last {NAN_STEPS} step lines is not a number"
    steps = [record for record in tail.records if record["kind"] == "step"][-NAN_STEPS:]
    if len(steps) == NAN_STEPS and all(map(_has_no_loss, steps)):
        return _fault("nan", "root", message, steps[0]["src"])
    # Two are enough if the loss was a number until then, and the log ends with them.
    if len(steps) == NAN_STEPS and type(steps[0].get("loss")) is float and all(map(_has_no_loss, steps[1:])):
        return _fault("nan", "root", f"the last {NAN_STEPS - 1} losses are not a number", steps[1]["src"])
    begin = max(0, tail.size - CONTEXT_BYTES)
    if steps or not last_words.losses_without_number(tail.context(begin, tail.size), NAN_STEPS):
        return None
    at = begin + tail.text(begin, tail.size).rstrip().rfind(b"\n") + 1
    return _fault("nan", "root", message, {"file": tail.shown, "offset": at})


def _is_without_number(logged: bytes) -> bool:
    return b"'loss': nan" in logged or (b"'loss': 0.0," in logged and b"'grad_norm': nan" in logged)


def _has_no_loss(step: Record) -> bool:
    """Whether the loss is no number.

    Megatron-DeepSpeed leaves such a loss out, and transformers' Trainer writes 0; their gradients' norm is no number either.
    """
    if step.get("nan_steps") or step.get("loss", 0) is None:
        return True
    return not step.get("loss") and step.get("grad_norm", 0) is None


def _fault(name: str, cause: str, message: str, source: Record, **fields: Any) -> Record:
    return {"kind": "fault", "fault": name, "cause": cause, "severity": "critical", "message": message, "src": source, **fields}
