"""Read tracebacks of Python and rich by their form: the exception's line follows the frames, whatever its class is.

The text before the heading (the margin) repeats before every line of the traceback: a time that advances, a rank, a node, the bar
of an exception group. Lines with a different margin belong to other processes and are skipped. A logger prints its prefix only
before the heading.
"""

import re
from collections.abc import Iterator, MutableSequence
from typing import NamedTuple

from lt_monitor.events.records import VERSION, Record
from lt_monitor.logs.formats import process_exits
from lt_monitor.logs.labels.prefixes import chain_end
from lt_monitor.logs.line_parsers import fault, regex
from lt_monitor.logs.lines import Line

HEADING = b"Traceback (most recent call last)"
# PaddlePaddle's stack of C++, whose exception has a heading of its own.
_NATIVE = b"C++ "
MAXIMUM_BYTES = 1 << 16
# Lines of other processes between the lines of a traceback.
MAXIMUM_FOREIGN_LINES = 200
MAXIMUM_MARGIN_BYTES = 400

_COLOUR = regex(rb"\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]")
_GROUP = b"+ Exception Group "
# IPython's heading: the exception's class, padded to the heading.
_NOTEBOOK = regex(rb"(?:^|(?<=\s))[A-Z]\w{0,80}[a-z]\w{0,80} {2,80}$")
_BOX = regex("(?P<corner>╭|┌|\\+)(?:─|-){2,200} ?$".encode())
_SIDES = (b"|", "│".encode())
_BOTTOMS = (b"+-", "╰".encode(), "└".encode())
# Letters of any script, in UTF-8; the lines of boxes (E2 ..) are none.
_LETTER = rb"(?:\w|[\xc3-\xe1\xe3-\xf4][\x80-\xbf]{1,3})"
_PART = rb"(?!\d)" + _LETTER + rb"{1,80}"
_NAME = rb"(?P<name>(?:(?:" + _PART + rb"|<locals>)\.){0,10}" + _PART + rb")"
_EXCEPTION = regex(rb"\s{0,2}" + _NAME + rb"(?:\([\w.]{1,80}\))?(?:: |:?\s{0,200}$)")
# Away from the frames: a class, or a name with its module.
_CLASS = regex(rb"(?:[a-z_]\w{0,80}\.)+[A-Za-z]\w{0,80}$|[A-Z]\w{0,80}[a-z]\w{0,80}$")
_FRAME = regex(rb"\s{1,12}(?:File \"|\[Previous line|\^|~)")
# Parts of a margin that change from line to line: dates, times, seconds, and the line numbers of a viewer.
_VARIABLE = regex(
    rb"(?P<grep>(?:^|(?<=[^\d\s:]):)\d{1,9}:$)"
    rb"|\d{4}[-/]\d\d[-/]\d\d|\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d{1,9})?|\d{1,12}\.\d{1,9}|^ {0,9}\d{1,9}(?=[\t ]|:(?! ))"
)
_SUB_EXCEPTION = regex(rb"[ |]{0,80}\+-\+?-{3,80} \d{1,4} -{3,80}\s{0,9}$")
_IN_GROUP = regex(rb"\| " + _NAME + rb"(?:: |:?\s{0,200}$)")
_GROUPS = (b"ExceptionGroup", b"BaseExceptionGroup")
# Exceptions for control flow. The exception raised as their consequence is the failure.
_CONTROL_FLOW = regex(rb"(?:^|\.)(?:CancelledError|StopIteration|StopAsyncIteration|GeneratorExit)$")


class Traceback(NamedTuple):
    """A traceback in a block. `exception` is the offset of the exception's line, or None if it has not been read yet.

    `text` is the offset of the exception's text, and `name` its class. `end` is the traceback's end so far. `is_open`: the
    exception may follow in the next block.
    """

    exception: int | None
    text: int
    name: bytes
    end: int
    last_frame: bytes
    is_open: bool = False


def read(block: bytes, heading: int) -> Traceback:
    """Read the traceback whose heading is at `heading` of the block."""
    begin = max(block.rfind(b"\n", 0, heading) + 1, heading - MAXIMUM_MARGIN_BYTES)
    after = block.find(b"\n", heading)
    if block.endswith(_NATIVE, begin, heading):
        return Traceback(None, 0, b"", after if after >= 0 else len(block), b"")
    if after < 0:
        return Traceback(None, 0, b"", len(block), b"", is_open=True)
    margin, is_box = _margin(block[begin:heading])
    pattern = _chosen_margin(margin, block, after + 1)
    frame, foreign, is_adjacent, end = b"", 0, True, after
    for line_begin, line in _lines(block, after + 1):
        stripped = _stripped(line, pattern)
        if stripped is None:
            foreign += 1
        elif HEADING in stripped:
            return Traceback(None, 0, b"", end, frame)
        elif is_box and stripped.startswith(_SIDES):
            frame = stripped.strip(b"| \xe2\x94\x82") if b".py:" in stripped else frame
        elif is_box and stripped.startswith(_BOTTOMS):
            is_box, is_adjacent = False, True
        elif stripped[:1] in (b" ", b"\t") and (is_adjacent or _FRAME.match(stripped)) and not _ends_in_margin(stripped, frame):
            frame = stripped.strip() if b"File " in stripped else frame
            is_adjacent = True
        elif (match := _EXCEPTION.match(stripped)) is not None and _is_exception(match["name"], is_adjacent, is_box):
            text_begin = line_begin + len(line) - len(stripped) + match.start("name")
            line_end = line_begin + len(line)
            whole = Traceback(line_begin, text_begin, match["name"], line_end, frame)
            return _raised_nowhere(block, whole) or whole if match["name"] in _GROUPS else whole
        else:
            foreign += 1
            is_adjacent = is_adjacent and not stripped.strip()
        end = line_begin + len(line)
        if foreign > MAXIMUM_FOREIGN_LINES:
            return Traceback(None, 0, b"", end, frame)
    is_cut = end - heading >= MAXIMUM_BYTES - 1
    return Traceback(None, 0, b"", end, frame, is_open=not is_cut)


def _raised_nowhere(block: bytes, group: Traceback) -> Traceback | None:
    """The first exception of a group, if it has no traceback of its own because nobody raised it."""
    (_, border), (begin, line), *_ = [*_lines(block, group.end + 1, 2), (0, b""), (0, b"")]
    if _SUB_EXCEPTION.search(border) is None or HEADING in line:
        return None
    match = _IN_GROUP.search(line)
    return None if match is None else Traceback(begin, begin + match.start("name"), match["name"], begin + len(line), b"")


def _ends_in_margin(stripped: bytes, frame: bytes) -> bool:
    """Whether this is the exception behind a label that left a space: frames are indented further."""
    return bool(frame) and stripped[:1] == b" " and stripped[1:2] not in (b" ", b"\t") and _EXCEPTION.match(stripped) is not None


def _is_exception(name: bytes, is_adjacent: bool, is_box: bool) -> bool:
    return not is_box and (is_adjacent or _CLASS.match(name) is not None)


def _margin(margin: bytes) -> tuple[bytes, bool]:
    """Return the margin of the traceback's lines, and whether rich drew a box around them."""
    margin = _COLOUR.sub(b"", margin)
    if (notebook := _NOTEBOOK.search(margin)) is not None:
        return margin[: notebook.start()], False
    if margin.endswith(_GROUP):
        return margin.removesuffix(_GROUP) + b"| ", False
    box = _BOX.search(margin)
    return (margin[: box.start()], True) if box is not None else (margin, False)


def _chosen_margin(margin: bytes, block: bytes, begin: int) -> re.Pattern[bytes] | None:
    """Return the margin pattern of the lines from `begin` on: the whole margin, only its labels, or None for no margin."""
    if not margin:
        return None
    patterns = [_pattern(part) for part in (margin, margin[: chain_end(margin)]) if part]
    for pattern in patterns:
        # The next line decides, unless several processes write at once.
        for _, line in _lines(block, begin, MAXIMUM_FOREIGN_LINES):
            stripped = _stripped(line, pattern)
            if stripped is not None and (stripped[:1] in (b" ", b"\t") or stripped.startswith(_SIDES)):
                return pattern
            if stripped is None and _FRAME.match(line) is not None:
                return None
    # The deciding lines may come in the next block.
    return patterns[0] if sum(1 for _ in _lines(block, begin, MAXIMUM_FOREIGN_LINES)) < MAXIMUM_FOREIGN_LINES else None


def _pattern(margin: bytes) -> re.Pattern[bytes]:
    parts, begin = [], 0
    for match in _VARIABLE.finditer(margin):
        text = re.sub(rb"\d+", rb"\\d{1,12}", re.escape(match[0].strip()))
        # grep prints `-` instead of `:` before context lines.
        text = text.replace(b":", b"[:-]") if match["grep"] is not None else text
        parts += [re.escape(margin[begin : match.start()]), rb" {0,9}" if match[0].startswith(b" ") else b"", text]
        begin = match.end()
    return re.compile(b"".join([*parts, re.escape(margin[begin:])]))


def _stripped(line: bytes, pattern: re.Pattern[bytes] | None) -> bytes | None:
    """Strip the margin from a line; return None if the line belongs to another process."""
    if b"\x1b" in line:
        line = _COLOUR.sub(b"", line)
    if pattern is None:
        return line
    match = pattern.match(line)
    if match is not None:
        return line[match.end() :]
    # An empty line loses the space at the end of its label.
    return b"" if pattern.match(line + b" ") is not None else None


def _lines(block: bytes, begin: int, count: int = MAXIMUM_BYTES) -> Iterator[tuple[int, bytes]]:
    last = begin + MAXIMUM_BYTES
    while begin < min(len(block), last) and count > 0:
        count -= 1
        end = block.find(b"\n", begin)
        end = len(block) if end < 0 else end
        yield begin, block[begin:end]
        begin = end + 1


def record_of(block: bytes, traceback: Traceback, offset: int) -> Record | None:
    """Build the fault of a traceback whose exception is in the block. The block begins at `offset` of the log."""
    if traceback.exception is None:
        return None
    line = Line(block[traceback.exception : traceback.end], offset + traceback.exception)
    begin = traceback.text - traceback.exception
    if not line.text.startswith(traceback.name, begin):
        # `Line` removed colours, so the offset in the raw line does not fit.
        begin = max(0, line.text.find(traceback.name))
    if traceback.name == b"SystemExit":
        code = line.text[begin:].removeprefix(b"SystemExit").strip(b": ")
        return None if code in (b"", b"0", b"None") else fault(line, "exit", "cascade", "critical", begin)
    if traceback.name in _GROUPS:
        return fault(line, "traceback", "unknown", "critical", begin, exception=traceback.name.decode())
    if _CONTROL_FLOW.search(traceback.name) is not None:
        return fault(line, "traceback", "cascade", "critical", begin, exception=traceback.name.decode())
    return process_exits.raised(line, traceback.name, begin, begin)


def cut_off(text: bytes, traceback: Traceback, offset: int) -> Record:
    """Build the fault of a traceback that the end of the log cuts off. `text` begins with the heading's line."""
    frame = traceback.last_frame.decode(errors="replace")
    line = Line(text.partition(b"\n")[0], offset)
    record = fault(line, "traceback", "root", "critical")
    record["message"] = f"a traceback that is cut off{', the last frame ' + frame if frame else ''}"
    return _with_labels(record, line)


def _with_labels(record: Record, line: Line) -> Record:
    labels = {field.name: int(line.text[begin:end]) for field, begin, end in line.labels if field and not field.is_time}
    time = {} if line.time is None else {"time": line.time}
    node = {} if line.node is None else {"node": line.node}
    return {"v": VERSION, **time, **labels, **node, "src": {"offset": line.offset}, **record}


class OpenTracebacks:
    """The tracebacks of one log. To continue an earlier parser, pass its `to_record()` as `state`."""

    def __init__(self, state: Record | None = None):
        state = state or {}
        # The log's text from the heading of the first traceback that is still open.
        self._text: bytes = state.get("text", "").encode("latin-1")
        self._faults: dict[int, Record] = {}

    def to_record(self) -> Record:
        return {"text": self._text.decode("latin-1")}

    def is_open(self) -> bool:
        return bool(self._text)

    def resume(self, block: bytes, offset: int) -> None:
        """Continue the tracebacks that the previous block left open."""
        open_text = self._text
        if not open_text:
            return
        self._text = b""
        text = open_text + block[:MAXIMUM_BYTES]
        for match in re.finditer(re.escape(HEADING), open_text):
            traceback = read(text, match.start())
            if traceback.exception is not None and traceback.exception < len(open_text):
                continue
            self._take(text, traceback, match.start(), offset - len(open_text), is_whole=len(block) <= MAXIMUM_BYTES)

    def read(self, block: bytes, heading: int, offset: int) -> None:
        """Read the traceback whose heading is at `heading` of the block."""
        self._take(block, read(block, heading), heading, offset, is_whole=True)

    def _take(self, block: bytes, traceback: Traceback, heading: int, offset: int, is_whole: bool) -> None:
        record = record_of(block, traceback, offset)
        if record is not None and traceback.exception is not None:
            line = Line(block[traceback.exception : traceback.end], offset + traceback.exception)
            self._faults[line.offset] = _with_labels(record, line)
        elif traceback.is_open and is_whole and not self._text:
            begin = max(block.rfind(b"\n", 0, heading) + 1, heading - MAXIMUM_MARGIN_BYTES)
            self._text = block[begin:] if len(block) - begin <= MAXIMUM_BYTES else b""

    def missing(self, items: MutableSequence[tuple[int, Record]]) -> list[tuple[int, Record]]:
        """Return the block's faults on lines without another fault. A warning on such a line is replaced by the failure."""
        faults, self._faults = self._faults, {}
        for index, (order, record) in enumerate(items) if faults else ():
            if order in faults and record.get("fault") == "traceback" and record["severity"] == "warning":
                items[index] = (order, faults[order])
        reported = {order for order, record in items if record["kind"] == "fault"} if faults else set()
        return [(offset, record) for offset, record in faults.items() if offset not in reported]
