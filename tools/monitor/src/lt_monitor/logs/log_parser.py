"""Parse blocks of whole log lines into event records, with any prefixes of launchers and terminals.

A block is read in three ways: the prefilter drops noise without splitting lines (2 GB/s), line templates read step lines that
differ only in digits by columns (300 MB/s), and the remaining lines are parsed one by one (10 microseconds per line). The three
ways give the same events; earlier lines decide only which way reads a line.
"""

import bisect
import heapq
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lt_monitor.events import records
from lt_monitor.events.records import Record
from lt_monitor.logs import event_lines, many_line_steps, user_patterns
from lt_monitor.logs.dumps import Dumps
from lt_monitor.logs.fast.step_rows import StepRows
from lt_monitor.logs.fast.step_templates import MINIMUM_ALIKE_LINES, StepTemplates, line_ends, lines_of
from lt_monitor.logs.fields import TASK, read_values
from lt_monitor.logs.formats import tracebacks
from lt_monitor.logs.formats.table import PARSERS
from lt_monitor.logs.formats.tracebacks import OpenTracebacks
from lt_monitor.logs.label_digits import unread_digits
from lt_monitor.logs.labels.removal import LabelRemoval
from lt_monitor.logs.line_parsers import StepLine
from lt_monitor.logs.lines import Line
from lt_monitor.logs.many_line_steps import OpenStep
from lt_monitor.logs.parsed_block import Item, ParsedBlock, in_order
from lt_monitor.logs.searched_keywords import (
    DUMP,
    EVENT_RECORD,
    NUMBERED,
    PREFILTER,
    SELECTION,
    STEP_HEAD,
    TRACEBACK,
    USER_PATTERN,
)
from lt_monitor.logs.step_numbers import StepNumbers

# If templates read this share of a block's bytes, templates are tried first on the next block.
DENSE = 0.5
FEW_LINES = 64
# More events than one line has, even in a copy of a terminal's last lines that lost its carriage returns.
MAXIMUM_PARTS = 64
MAXIMUM_GLUED_BYTES = 1 << 16

_RECORD = re.compile(rb'\{"v": ?1, ?"kind": ?')
_BETWEEN_EVENTS = b" ]|,\t"
_AFTER_STEP = ("checkpoint", "end", "eval")

Hits = dict[int, list[int]]
"""The offsets in the block, ascending, of a line's keywords, by the parser that the keywords belong to."""


class LogParser:
    """Parses one log, block by block. To continue an earlier parser, pass its `to_record()` as `state`.

    `malformed` counts lines that begin like an event record but are invalid; `first_malformed` names the first and its problem.
    """

    def __init__(self, state: Record | None = None):
        state = state or {}
        self._labels = LabelRemoval(state.get("labels"))
        self._dumps = Dumps(**state.get("dumps", {}))
        self._step_numbers = StepNumbers(state.get("step_numbers"))
        self._tracebacks = OpenTracebacks(state.get("tracebacks"))
        self._open_step = OpenStep(state.get("open_step"))
        self._last_step: int | None = state.get("last_step")
        self._has_step_lines: bool = state.get("has_step_lines", False)
        self._templates = StepTemplates()
        self._patterns = user_patterns.active()
        self._is_dense = False
        # Whether the last block was an excerpt, which steps fill although its log is full of noise.
        self._is_excerpt = False
        self.malformed = 0
        self.first_malformed = ""

    def to_record(self) -> Record:
        return {
            "labels": self._labels.to_record(),
            "dumps": self._dumps.to_record(),
            "tracebacks": self._tracebacks.to_record(),
            "open_step": self._open_step.to_record(),
            "step_numbers": self._step_numbers.to_record(),
            "last_step": self._last_step,
            "has_step_lines": self._has_step_lines,
        }

    def parse(self, block: bytes, offset: int) -> ParsedBlock:
        """Parse whole lines that begin at byte `offset` of the log. The last line may lack its newline."""
        if b"\r" in block:
            block = block.replace(b"\r", b"\n")
        unlabelled = self._labels.remove(block, None if self._needs_all_lines() else SELECTION)
        self._is_excerpt = unlabelled is not None and unlabelled.excerpt is not None
        if unlabelled is None:
            return self._parse(block, offset)
        parsed = self._parse(unlabelled.text, offset)
        if unlabelled.excerpt is not None and not unlabelled.excerpt.has_last_bar:
            self._step_numbers.end_without_bar()
        parsed = parsed.relabelled(offset, unlabelled.origins)
        self._dumps.relocate(offset, lambda at: int(unlabelled.origins(np.array([at]))[0][0]))
        return parsed

    def _needs_all_lines(self) -> bool:
        """Whether lines without a keyword may matter in the next block, or nearly all of its lines are steps."""
        is_open = self._dumps.is_open() or self._open_step.is_open() or self._tracebacks.is_open()
        return is_open or (self._is_dense and not self._is_excerpt) or bool(self._patterns)

    def _parse(self, block: bytes, offset: int) -> ParsedBlock:
        items: list[Item] = []
        rows: list[StepRows] = []
        self._resume_dumps(block, 0, offset, items)
        self._resume_step(block, 0, offset, items)
        self._tracebacks.resume(block, offset)
        candidates = self._read_all_with_templates(block, offset, rows) if self._is_dense else self._candidates(block)
        patience = MINIMUM_ALIKE_LINES
        while len(candidates):
            if self._templates and len(candidates) >= MINIMUM_ALIKE_LINES:
                candidates = self._read_with_templates(block, offset, candidates, rows)
            begin = self._read_line_by_line(block, offset, candidates, items, patience)
            candidates = candidates[np.searchsorted(candidates, begin) :]
            patience *= 2
        self._is_dense = sum(part.cells.size for part in rows) > DENSE * len(block)
        self._step_numbers.end_block(block)
        items += self._tracebacks.missing(items)
        self._add_steps(items, rows)
        return ParsedBlock(items, rows)

    def _read_all_with_templates(self, block: bytes, offset: int, rows: list[StepRows]) -> np.ndarray:
        """Read every line that fits a template, without searching for keywords; return the candidates in the other lines.

        If the block is full of step lines, this takes half the time.
        """
        ends = line_ends(block)
        starts = np.concatenate(([0], ends[:-1] + 1))
        unread_lines = np.flatnonzero(~self._templates.take(block, offset, starts, ends - starts, rows))
        if len(unread_lines) > FEW_LINES:
            candidates = self._candidates(block)
            return candidates[np.isin(np.searchsorted(ends, candidates), unread_lines)]
        by_line = [starts[line] + self._candidates(block[starts[line] : ends[line]]) for line in unread_lines]
        return np.concatenate(by_line) if by_line else np.empty(0, np.int64)

    def _read_with_templates(self, block: bytes, offset: int, candidates: np.ndarray, rows: list[StepRows]) -> np.ndarray:
        """Read the lines with candidates that fit a template; return the candidates in the other lines."""
        starts, ends = lines_of(block, candidates)
        is_read = self._templates.take(block, offset, starts, ends - starts, rows)
        return np.asarray(candidates[~is_read[np.searchsorted(ends, candidates)]])

    def _candidates(self, block: bytes) -> np.ndarray:
        """Return the offsets (int64, ascending) that may lie in a keyword, and the matches of the user's patterns."""
        candidates = PREFILTER.candidates(block)
        matches = [match.start() for pattern in self._patterns for match in pattern.expression.finditer(block)]
        return np.union1d(candidates, matches).astype(np.int64) if matches else candidates

    def _keywords(self, block: bytes, candidates: list[int]) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield the candidates that lie in a keyword or begin a match, with their parsers."""
        confirmed = PREFILTER.confirmed(block, candidates)
        if not self._patterns:
            return confirmed
        count = len(self._patterns) - 1
        matches = (
            (
                at,
                [
                    USER_PATTERN - count + index
                    for index, pattern in enumerate(self._patterns)
                    if pattern.expression.match(block, at)
                ],
            )
            for at in candidates
        )
        return heapq.merge(confirmed, matches, key=in_order)

    def _read_line_by_line(self, block: bytes, offset: int, candidates: np.ndarray, items: list[Item], patience: int) -> int:
        """Parse lines one by one until the end or until `patience` lines were steps; return the offset after the last line."""
        steps = 0
        line_end = -1
        line_begin = 0
        hits: Hits = {}
        for hit_offset, meaning in self._keywords(block, candidates.tolist()):
            if hit_offset < line_end:
                for parser in meaning:
                    hits.setdefault(parser, []).append(hit_offset)
                continue
            if hits:
                steps += self._read_line(block, line_begin, line_end, offset, hits, items)
                if steps >= patience:
                    return line_end
            line_begin = block.rfind(b"\n", 0, hit_offset) + 1
            line_end = block.find(b"\n", hit_offset)
            if line_end < 0:
                line_end = len(block)
            hits = {parser: [hit_offset] for parser in meaning}
        if hits:
            self._read_line(block, line_begin, line_end, offset, hits, items)
        return len(block)

    def _read_line(self, block: bytes, begin: int, end: int, offset: int, hits: Hits, items: list[Item], depth: int = 0) -> bool:
        """Parse a line or a part of a line; return whether a template may fit it."""
        raw = block[begin:end]
        if EVENT_RECORD in hits and (beginnings := list(_RECORD.finditer(raw))):
            record = self._event_record(raw[beginnings[-1].start() :], offset + begin)
            if record is not None:
                items.append((offset + begin, record))
            return False
        # If one line has several headings, the frames below belong to the last one.
        for heading in hits.get(TRACEBACK, [])[-1:]:
            self._tracebacks.read(block, block.find(tracebacks.HEADING, max(begin, heading - len(tracebacks.HEADING))), offset)
        line = Line(raw, offset + begin)
        if DUMP in hits:
            whole = self._dumps.heading(line)
            if whole is not None:
                items.append((whole[0], _completed(whole[1], line)))
            self._resume_dumps(block, end + 1, offset, items)
        if STEP_HEAD in hits:
            line.relabel(hits[STEP_HEAD][-1] - begin)
            if (head := many_line_steps.head(line)) is not None:
                self._step_numbers.note(head.record)
                if self._has_step_lines and head.is_engine:
                    return False
                self._open_step.begin(head.trainer, _completed(head.record, line))
                self._resume_step(block, end + 1, offset, items)
                return False
        hits_in_line = {index: [at - begin for at in hits[index]] for index in sorted(hits) if not USER_PATTERN < index < 0}
        parsed = self._parsed(line, hits_in_line)
        if isinstance(parsed, StepLine):
            self._has_step_lines = True
            record = self._step_record(line, parsed, block, begin)
            return record is not None and self._read_step(raw, line, parsed, record, hits_in_line, items, depth)
        if parsed is not None:
            self._step_numbers.note_batch_size(parsed)
            items.append((offset + begin, _completed(parsed, line)))
        return False

    def _parsed(self, line: Line, hits: Hits) -> StepLine | Record | None:
        """Parse a line by the first parser that recognises it. `hits` are in the parsers' order, with offsets in the line."""
        for index, offsets in hits.items():
            line.relabel(offsets[-1])
            parsed = PARSERS[index][0](line) if index >= 0 else self._patterns[index - USER_PATTERN - 1].parse(line)
            if parsed is not None:
                return parsed
        return None

    def _step_record(self, line: Line, step: StepLine, block: bytes, begin: int) -> Record | None:
        if step.record is not None:
            self._step_numbers.complete(step.record, block, begin)
            return _completed(step.record, line)
        try:
            return {"v": records.VERSION, "kind": "step", **read_values(line.text, step.values), **_node(line)}
        except ValueError:
            return None

    def _read_step(
        self, raw: bytes, line: Line, step: StepLine, record: Record, hits: Hits, items: list[Item], depth: int
    ) -> bool:
        """Add a line's step and the events before and behind it; return whether a template may fit the line.

        A progress bar ends without a newline, so a fault or the next frame of the bar may follow on the same line.
        """
        begin, end = map(line.raw_index, step.span())
        keywords_at = list(itertools.chain.from_iterable(hits.values()))
        is_alone, offset = True, line.offset
        first = max(0, begin - MAXIMUM_GLUED_BYTES)
        if any(first <= at < begin for at in keywords_at) and self._read_part(raw, first, begin, line, items, depth):
            is_alone, offset = False, line.offset + begin
        items.append((offset, {**record, "src": {"offset": offset}}))
        if any(at >= end for at in keywords_at) and self._read_part(raw, end, len(raw), line, items, depth):
            is_alone = False
        if not is_alone or step.record is not None:
            return False
        return self._templates.learn(raw, line, step, lambda: self._unread_digits(raw, line, step, hits))

    def _unread_digits(self, raw: bytes, line: Line, step: StepLine, hits: Hits) -> list[int]:
        """Return the digits of the label that other lines with the same template may have otherwise."""
        # A user's pattern may read any digit.
        return [] if self._patterns else unread_digits(raw, line, step, lambda other: self._parsed(other, hits), NUMBERED)

    def _read_part(self, raw: bytes, begin: int, end: int, line: Line, items: list[Item], depth: int) -> bool:
        """Parse a part of a line as a line of its own; return whether it has an event."""
        text = raw[begin:end].lstrip(_BETWEEN_EVENTS)
        begin = end - len(text)
        hits: Hits = {}
        for at, meaning in self._keywords(text, self._candidates(text).tolist()):
            for parser in meaning:
                hits.setdefault(parser, []).append(at)
        count_before = len(items)
        if depth < MAXIMUM_PARTS:
            self._read_line(
                text, 0, len(text), line.offset + begin, {key: at for key, at in hits.items() if key >= 0}, items, depth + 1
            )
        for _, record in items[count_before:]:
            record |= {field: value for field, value in _origin(line).items() if field not in record}
        return len(items) > count_before

    def _resume_dumps(self, block: bytes, begin: int, offset: int, items: list[Item]) -> None:
        """Continue an unfinished dump from `begin` in the block."""
        if self._dumps.arguments is not None:
            end = block.find(b" arguments -", begin)
            end = len(block) if end < 0 else block.rfind(b"\n", 0, end) + 1
            self._dumps.read_arguments(_lines(block, begin, end, offset))
        if self._dumps.timers is not None:
            whole = self._dumps.read_timers(_lines(block, begin, len(block), offset))
            if whole is not None:
                items.append((whole[0], {"v": records.VERSION, **whole[1]}))

    def _resume_step(self, block: bytes, begin: int, offset: int, items: list[Item]) -> None:
        """Continue an unfinished many-line step from `begin` in the block."""
        record = self._open_step.read(block, begin, offset)
        if record is not None:
            items.append((record["src"]["offset"], record))

    def _event_record(self, text: bytes, offset: int) -> Record | None:
        """Parse a line that is already an event record. Its run and source are kept if it has them."""
        record = event_lines.read(text)
        if isinstance(record, str):
            self.malformed += 1
            self.first_malformed = self.first_malformed or f"at byte {offset}: {record}"
            return None
        if record is None:
            return None
        source = record.get("src")
        return {**record, "src": {"offset": offset, **source} if isinstance(source, dict) else {"offset": offset}}

    def _add_steps(self, items: list[Item], rows: list[StepRows]) -> None:
        """Give each event without a step the step of the last step line before it, and remember the last step of the block.

        A validation before the first step gets no step and is dropped.
        """
        without = [(order, record) for order, record in items if record["kind"] in _AFTER_STEP and "step" not in record]
        steps_by_offset: list[tuple[int, int]] = []
        if without or not rows:
            steps_by_offset = [(order, record["step"]) for order, record in items if record["kind"] == "step"]
        for part in rows:
            steps = next(column for column in part.template.columns if column.field.name == "step")
            chosen: Any = slice(None) if without else slice(-1, None)
            numbers = steps.read(part.cells[chosen]).astype(np.int64)
            steps_by_offset += zip(part.offsets[chosen].tolist(), numbers.tolist(), strict=True)
        if rows and not without:
            steps_by_offset += [(order, record["step"]) for order, record in _last_step(items)]
        steps_by_offset.sort()
        for order, record in without:
            index = bisect.bisect_left(steps_by_offset, (order,)) - 1
            step = steps_by_offset[index][1] if index >= 0 else self._last_step
            if step is not None:
                record["step"] = step
        if without:
            items[:] = [item for item in items if item[1]["kind"] != "eval" or "step" in item[1]]
        if steps_by_offset:
            self._last_step = steps_by_offset[-1][1]


def _completed(parsed: Record, line: Line) -> Record:
    """Add the time, task and rank of the line's prefixes, and the line's offset, to a parser's record."""
    labels: Record = {} if "time" in parsed or line.time is None else {"time": line.time}
    for field, begin, end in line.labels:
        if field is not None and not field.is_time:
            labels[field.name] = int(line.text[begin:end])
    return {"v": records.VERSION, **labels, **_node(line), "src": {"offset": line.offset}, **parsed}


def _last_step(items: list[Item]) -> list[Item]:
    return next(([item] for item in reversed(items) if item[1]["kind"] == "step"), [])


def _node(line: Line) -> Record:
    return {} if line.node is None else {"node": line.node}


def _origin(line: Line) -> Record:
    """Return the task and the node that a launcher printed before the whole line."""
    tasks = [int(line.text[begin:end]) for field, begin, end in line.labels if field is TASK]
    return ({"task": tasks[0]} if tasks else {}) | _node(line)


def _lines(block: bytes, begin: int, end: int, offset: int) -> Iterator[Line]:
    while begin < end:
        line_end = block.find(b"\n", begin, end)
        line_end = end if line_end < 0 else line_end
        yield Line(block[begin:line_end], offset + begin)
        begin = line_end + 1
