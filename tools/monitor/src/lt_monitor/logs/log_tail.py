"""Read the events at the end of a log backwards, so that a log of a gigabyte takes as long as its last megabyte.

Growing windows are read from the end until they contain step lines. Most logs have step lines shortly before their end; a log
without any is read whole. Only lines that pass the prefilter are parsed. A log may repeat one warning a million times, and all of
these lines pass. If a block has too many candidates, only the first and the last of the lines that differ only in digits are
kept. So the bytes and not the lines bound the work, at the price that some ranks named in a flood of lines are missed.
"""

import bisect
import contextlib
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import IO

import numpy as np

from lt_monitor.events.records import Record
from lt_monitor.logs import file_contents, log_files
from lt_monitor.logs.compressed_logs import DecompressedLog, decompressing
from lt_monitor.logs.fast.prefilter import GROUP_BYTES, Prefilter
from lt_monitor.logs.formats import tracebacks
from lt_monitor.logs.formats.table import HEADS, PARSERS, keywords
from lt_monitor.logs.labels.removal import LabelRemoval
from lt_monitor.logs.log_parser import LogParser
from lt_monitor.logs.parsed_block import attributed
from lt_monitor.logs.step_numbers import last_bar
from lt_monitor.logs.trainers import huggingface
from lt_shared.files import storage

FIRST_WINDOW_BYTES = 1 << 20
GROWTH = 8
BLOCK_BYTES = 1 << 21
LINE_BYTES = 1 << 16
# Distinct steps to find. One is not enough, because a single rank may print a step that the other ranks never reached.
ENOUGH_STEPS = 3
# So many candidates of a log are parsed without dropping any, about a second's work. After that, each block still gets
# BLOCK_CANDIDATES.
MAXIMUM_CANDIDATES = 30_000
BLOCK_CANDIDATES = 32
# Two candidates are alike if this many groups of bytes from the candidate on differ only in digits.
CONTEXT_GROUPS = 5
# Bars and losses of any trainer are looked for in this many bytes.
PROGRESS_BYTES = 1 << 26

_EVENT = b'"kind":'
_TRACEBACK, _STEP_HEAD = -2, -3
_FIGURES = frozenset(index for index, (parser, _) in enumerate(PARSERS) if parser is huggingface.figures)
_MLPERF = b":::MLLOG "
_BATCH_SIZE = re.compile(rb':::MLLOG \{[^\n]{0,400}"global_batch_size", "value": (?P<size>\d{1,12}),')
_PREFILTER = Prefilter({**{head: [_STEP_HEAD] for head in HEADS}, **keywords(), _EVENT: [-1], tracebacks.HEADING: [_TRACEBACK]})
_HASH_BITS = 16
_MULTIPLIER = np.uint32(2654435761)
_PROGRESS_TOKENS = (b"it/s", b"s/it", b"'loss': ")
_PROGRESS = re.compile(
    rb"(?P<bar>\d{1,9}/\d{1,9}) \[\d{1,3}:\d\d[^\]\r\n]{0,200}(?:it/s|s/it)|(?P<dict>\{'loss': [^}\r\n]{1,300}\})"
)
_PROGRESS_CONTEXT_BYTES = 1 << 16


class LogTail:
    """The end of the log `path` (`-` is standard input). `records` are its events in the order of the log, with their offsets.

    `progress` holds offsets and texts of progress bars and logged losses, for trainers without a parser. `problem` says why the
    file is no log; then both lists are empty.
    """

    def __init__(self, path: str):
        self.path = path
        self.shown = log_files.printable(path)
        self.records: list[Record] = []
        self.progress: list[tuple[int, bytes]] = []
        self._budget = MAXIMUM_CANDIDATES
        self._labels = LabelRemoval()
        log = _opened_log(path)
        self._file = _seekable(log, path)
        self.size = self._file.seek(0, 2)
        self.problem = file_contents.damage_problem(self.shown, log, self.size) or file_contents.text_problem(
            self.shown, self._file
        )
        log_files.warn_of_damage(log, self.shown, self.size)
        if self.problem is None:
            self._read_backwards()

    def close(self) -> None:
        self._file.close()

    def release(self) -> None:
        """Close the file until the next read, because a job may have more logs than a process may open files."""
        if not _is_copied(self.path):
            self._file.close()

    def text(self, begin: int, end: int) -> bytes:
        """Return the bytes of the log from `begin` to `end`, clipped to the log."""
        begin = max(0, begin)
        with self._opened() as file:
            file.seek(begin)
            return file.read(max(0, end - begin))

    def _opened(self) -> contextlib.AbstractContextManager[IO[bytes]]:
        return _seekable(_opened_log(self.path), self.path) if self._file.closed else contextlib.nullcontext(self._file)

    def context(self, begin: int, end: int) -> bytes:
        """Return the text from `begin` to `end` without the labels in front of its lines."""
        text = self.text(begin, end).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        unlabelled = self._labels.remove(text)
        return text if unlabelled is None else unlabelled.text

    def line_number(self, offset: int) -> int:
        """Return the number of the line that begins at `offset`, counted from 1."""
        number, bytes_to_read = 1, offset
        with self._opened() as file:
            file.seek(0)
            while bytes_to_read > 0 and (block := file.read(min(bytes_to_read, BLOCK_BYTES))):
                number += int(np.count_nonzero(np.frombuffer(block, np.uint8) == ord("\n")))
                bytes_to_read -= len(block)
        return number

    def _read_backwards(self) -> None:
        end, window = self.size, FIRST_WINDOW_BYTES
        while end > 0 and not self._is_enough():
            begin = self._line_begin(self.size - window, end)
            window_records: list[Record] = []
            for offset, block in self._blocks(begin, end):
                window_records += self._unlabelled_events(block.replace(b"\r", b"\n"), offset)
            self.records = window_records + self.records
            end, window = begin, window * GROWTH

    def _is_enough(self) -> bool:
        steps = {record["step"] for record in self.records if record["kind"] == "step"}
        return len(steps) >= ENOUGH_STEPS or len({text for _, text in self.progress}) >= ENOUGH_STEPS

    def _line_begin(self, target: int, end: int) -> int:
        """Return the first line begin at or after `target`; `target` itself if no line ends within LINE_BYTES."""
        if target <= 0:
            return 0
        text = self.text(target - 1, min(target + LINE_BYTES, end))
        at = text.find(b"\n")
        return target if at < 0 or target + at >= end else target + at

    def _blocks(self, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield blocks of whole lines from `begin` to `end` with their offsets. A line longer than LINE_BYTES may be cut."""
        self._file.seek(begin)
        while begin < end and (block := self._file.read(min(end - begin, BLOCK_BYTES))):
            if begin + len(block) < end:
                block += self._file.readline(min(LINE_BYTES, end - begin - len(block)))
            yield begin, block
            begin += len(block)

    def _unlabelled_events(self, block: bytes, offset: int) -> list[Record]:
        unlabelled = self._labels.remove(block)
        is_last = offset + len(block) >= self.size
        if unlabelled is None:
            return self._events(block, offset, is_last)
        progress = self.progress
        self.progress = []
        records = self._events(unlabelled.text, offset, is_last)
        here = [record for record in records if record["src"].get("file") == self.shown]
        at = [*(record["src"]["offset"] for record in here), *(mark for mark, _ in self.progress)]
        begins, labels = unlabelled.origins(np.array(at, dtype=np.int64) - offset)
        for record, begin, label in zip(here, begins.tolist(), labels, strict=False):
            record |= {field: value for field, value in label.items() if field not in record}
            record["src"]["offset"] = offset + begin
        marks = zip(begins[len(here) :].tolist(), self.progress, strict=True)
        self.progress = sorted(progress + [(offset + begin, text) for begin, (_, text) in marks])
        return records

    def _events(self, block: bytes, offset: int, is_last: bool) -> list[Record]:
        """Parse the lines of an unlabelled block that pass the prefilter."""
        if offset > self.size - PROGRESS_BYTES:
            self._note_progress(block, offset)
        candidates = _PREFILTER.candidates(block)
        if len(candidates) > max(self._budget, BLOCK_CANDIDATES):
            candidates = _distinct(block, candidates)
            if self._budget == 0:
                half = BLOCK_CANDIDATES // 2
                candidates = np.unique(np.concatenate([candidates[:half], candidates[-half:]]))
        self._budget = max(0, self._budget - len(candidates))
        lines, begins, origins, length = [], [], [], 0
        cut: list[Record] = []
        run, last_end = log_files.run_name(self.path), -1
        for hit, meaning in _PREFILTER.confirmed(block, candidates.tolist()):
            if hit < last_end:
                continue
            begin = max(block.rfind(b"\n", max(0, hit - LINE_BYTES), hit) + 1, hit - LINE_BYTES, 0)
            end = block.find(b"\n", hit, hit + LINE_BYTES)
            if not _FIGURES.isdisjoint(meaning) and (bar := last_bar(block, max(last_end + 1, 0), begin)) is not None:
                lines.append(block[bar[0] : bar[1]])
                begins.append(length)
                origins.append(offset + bar[0])
                length += bar[1] - bar[0] + 1
            last_end = end if end >= 0 else min(hit + LINE_BYTES, len(block))
            if _TRACEBACK in meaning:
                traceback = tracebacks.read(block, block.find(tracebacks.HEADING, max(begin, hit - len(tracebacks.HEADING))))
                last_end = max(last_end, traceback.end)
                if traceback.is_open and is_last:
                    cut.append(attributed(tracebacks.cut_off(block[begin:last_end], traceback, offset + begin), self.shown, run))
            lines.append(block[begin:last_end])
            begins.append(length)
            origins.append(offset + begin)
            length += last_end - begin + 1
        parsed = self._parsed(b"\n".join(lines), begins, origins) if lines else []
        return sorted(parsed + cut, key=_offset) if cut else parsed

    def _parsed(self, text: bytes, begins: list[int], origins: list[int]) -> list[Record]:
        """Parse the chosen lines, which begin at `begins` in `text` and at `origins` in the log."""
        parser = LogParser({"step_numbers": {"batch_size": self._batch_size()}} if _MLPERF in text else None)
        parsed = parser.parse(text, 0)
        run = log_files.run_name(self.path)
        ordered = [*parsed.ordered_items(), *((0, record) for part in parsed.rows for record in part.records(self.shown, run))]
        for _, record in ordered:
            source = record["src"]
            if "file" not in source or source["file"] == self.shown:
                chunk = bisect.bisect_right(begins, source["offset"]) - 1
                line_begin = max(begins[chunk], text.rfind(b"\n", begins[chunk], source["offset"]) + 1)
                record["src"] = {"file": self.shown, "offset": origins[chunk] + line_begin - begins[chunk]}
        return sorted((record for _, record in ordered), key=_offset)

    def _batch_size(self) -> int | None:
        """Return the batch size from MLPerf's entry at the beginning of the log."""
        match = _BATCH_SIZE.search(self.context(0, FIRST_WINDOW_BYTES))
        return int(match["size"]) if match is not None else None

    def _note_progress(self, block: bytes, offset: int) -> None:
        """Add the last progress bars and losses of a block. Later windows lie earlier in the log, so the list is sorted again."""
        last = max(block.rfind(token) for token in _PROGRESS_TOKENS)
        if last < 0:
            return
        begin = max(0, last - _PROGRESS_CONTEXT_BYTES)
        end = last + LINE_BYTES
        marks = [(offset + match.start(), match["bar"] or match["dict"]) for match in _PROGRESS.finditer(block, begin, end)]
        self.progress = sorted(self.progress + marks)


def _offset(record: Record) -> int:
    return int(record["src"].get("offset", 0))


def _distinct(block: bytes, candidates: np.ndarray) -> np.ndarray:
    """Keep the first and the last of the candidates whose texts differ only in digits."""
    groups = np.frombuffer(block, dtype="<u4", count=len(block) // GROUP_BYTES)
    index = candidates // GROUP_BYTES
    hashes = np.zeros(len(index), dtype=np.uint32)
    for shift in range(CONTEXT_GROUPS):
        hashes = (hashes ^ _without_digits(groups[np.minimum(index + shift, len(groups) - 1)])) * _MULTIPLIER
    hashes >>= np.uint32(32 - _HASH_BITS)
    is_kept = np.zeros(len(index), dtype=bool)
    for order in (slice(None), slice(None, None, -1)):
        candidate_by_hash = np.full(1 << _HASH_BITS, -1)
        # NumPy keeps the last of several assignments to one cell: forwards the last candidate, backwards the first.
        candidate_by_hash[hashes[order]] = np.arange(len(index))[order]
        is_kept[candidate_by_hash[candidate_by_hash >= 0]] = True
    return candidates[is_kept]


def _without_digits(groups: np.ndarray) -> np.ndarray:
    """Set every digit in groups of four bytes to zero: a byte with the high nibble 3 loses its low nibble."""
    halves = (groups & np.uint32(0xF0F0F0F0)) ^ np.uint32(0x30303030)
    is_other = (
        (halves >> np.uint32(4)) | (halves >> np.uint32(5)) | (halves >> np.uint32(6)) | (halves >> np.uint32(7))
    ) & np.uint32(0x01010101)
    return np.asarray(groups & (np.uint32(0xF0F0F0F0) | is_other * np.uint32(0x0F)))


def _opened_log(path: str) -> IO[bytes]:
    """Open the log, or its content if it is compressed."""
    if path == log_files.STANDARD_INPUT:
        return decompressing(open(sys.stdin.fileno(), "rb", closefd=False))
    if storage.is_remote(path):
        return decompressing(storage.open_read(path))
    if storage.is_special(path):
        return decompressing(open(path, "rb"))
    with storage.reading(path):
        return log_files.open_log(path)


def _seekable(log: IO[bytes], path: str) -> IO[bytes]:
    """Return the log, or a temporary file with its content if the log is a pipe or compressed."""
    return _copied(log) if _is_copied(path) or isinstance(log, DecompressedLog) else log


def _is_copied(path: str) -> bool:
    return path == log_files.STANDARD_INPUT or (not storage.is_remote(path) and storage.is_special(path))


def _copied(pipe: IO[bytes]) -> IO[bytes]:
    file = tempfile.TemporaryFile()
    with pipe:
        shutil.copyfileobj(pipe, file, BLOCK_BYTES)
    return file
