"""The events at the end of a log, read backwards, so that a log of a gigabyte takes as long as its last megabyte.

Windows that grow are read from the end until there are step lines in them, which most logs have shortly before they end; a log
without any is read whole. Only lines that the prefilter lets through are parsed. A log that repeats one warning a million times
has a million of those: where there are too many in a block, of lines that differ only in digits the first and the last are kept.
So the work is bounded by the bytes and not by the lines, at the price of ranks that a flood of lines names.
"""

import bisect
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import IO

import numpy as np

from lt_monitor.events.records import Record
from lt_monitor.logs import log_files
from lt_monitor.logs.formats.table import keywords
from lt_monitor.logs.log_parser import LogParser
from lt_monitor.logs.prefilter import GROUP_BYTES, Prefilter
from lt_shared import storage

FIRST_WINDOW_BYTES = 1 << 20
GROWTH = 8
BLOCK_BYTES = 1 << 21
LINE_BYTES = 1 << 16
# Distinct steps that have to be in a window; more than one, since a rank may print a step that the others did not reach.
ENOUGH_STEPS = 3
# Candidates of one log that are parsed without leaving any out, about a second's work, and of each block whatever was before.
MAXIMUM_CANDIDATES = 30_000
BLOCK_CANDIDATES = 32
# How much of the text from a candidate on tells two of them apart.
CONTEXT_GROUPS = 5
# Bars and losses of any trainer are looked for in this many bytes.
PROGRESS_BYTES = 1 << 26

_EVENT = b'"kind":'
_PREFILTER = Prefilter({**keywords(), _EVENT: [-1]})
_HASH_BITS = 16
_MULTIPLIER = np.uint32(2654435761)
_PROGRESS_TOKENS = (b"it/s", b"s/it", b"'loss': ")
_PROGRESS = re.compile(
    rb"(?P<bar>\d{1,9}/\d{1,9}) \[\d{1,3}:\d\d[^\]\r\n]{0,200}(?:it/s|s/it)|(?P<dict>\{'loss': [^}\r\n]{1,300}\})"
)
_PROGRESS_CONTEXT_BYTES = 1 << 16


class LogTail:
    """The end of the log `path` (`-` is standard input): `records` are its events with their offsets in the log, in its order.

    `progress` are the offsets and texts of progress bars and logged losses of trainers that have no parser.
    """

    def __init__(self, path: str):
        self.path = path
        self.shown = log_files.printable(path)
        self.records: list[Record] = []
        self.progress: list[tuple[int, bytes]] = []
        self._budget = MAXIMUM_CANDIDATES
        self._file = _seekable(path)
        self.size = self._file.seek(0, 2)
        self._read_backwards()

    def close(self) -> None:
        self._file.close()

    def text(self, begin: int, end: int) -> bytes:
        """The bytes from `begin` to `end` of the log, as far as it has them."""
        begin = max(0, begin)
        self._file.seek(begin)
        return self._file.read(max(0, end - begin))

    def line_number(self, offset: int) -> int:
        """The number of the line that begins at `offset`, from 1."""
        self._file.seek(0)
        number, left = 1, offset
        while left > 0 and (block := self._file.read(min(left, BLOCK_BYTES))):
            number += int(np.count_nonzero(np.frombuffer(block, np.uint8) == ord("\n")))
            left -= len(block)
        return number

    def _read_backwards(self) -> None:
        end, window = self.size, FIRST_WINDOW_BYTES
        while end > 0 and not self._is_enough():
            begin = self._line_begin(self.size - window, end)
            found: list[Record] = []
            for offset, block in self._blocks(begin, end):
                found += self._events(block.replace(b"\r", b"\n"), offset)
            self.records = found + self.records
            end, window = begin, window * GROWTH

    def _is_enough(self) -> bool:
        steps = {record["step"] for record in self.records if record["kind"] == "step"}
        return len(steps) >= ENOUGH_STEPS or len({text for _, text in self.progress}) >= ENOUGH_STEPS

    def _line_begin(self, wanted: int, end: int) -> int:
        """Where a line begins, at `wanted` or shortly after it; `wanted` itself in a line without an end."""
        if wanted <= 0:
            return 0
        text = self.text(wanted - 1, min(wanted + LINE_BYTES, end))
        at = text.find(b"\n")
        return wanted if at < 0 or wanted + at >= end else wanted + at

    def _blocks(self, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Whole lines from `begin` to `end`, with the offset of each block; a line that is longer than LINE_BYTES may be cut."""
        self._file.seek(begin)
        while begin < end and (block := self._file.read(min(end - begin, BLOCK_BYTES))):
            if begin + len(block) < end:
                block += self._file.readline(min(LINE_BYTES, end - begin - len(block)))
            yield begin, block
            begin += len(block)

    def _events(self, block: bytes, offset: int) -> list[Record]:
        """What the block's lines say, as far as the prefilter lets them through."""
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
        last_end = -1
        for hit, _ in _PREFILTER.confirmed(block, candidates.tolist()):
            if hit < last_end:
                continue
            begin = max(block.rfind(b"\n", max(0, hit - LINE_BYTES), hit) + 1, hit - LINE_BYTES, 0)
            end = block.find(b"\n", hit, hit + LINE_BYTES)
            last_end = end if end >= 0 else min(hit + LINE_BYTES, len(block))
            lines.append(block[begin:last_end])
            begins.append(length)
            origins.append(offset + begin)
            length += last_end - begin + 1
        return self._parsed(b"\n".join(lines), begins, origins) if lines else []

    def _parsed(self, text: bytes, begins: list[int], origins: list[int]) -> list[Record]:
        """The events of chosen lines, which begin at `begins` in `text` and at `origins` in the log."""
        parsed = LogParser().parse(text, 0)
        run = log_files.run_name(self.path)
        found = [*parsed.ordered_items(), *((0, record) for part in parsed.rows for record in part.records(self.shown, run))]
        for _, record in found:
            source = record["src"]
            if "file" not in source or source["file"] == self.shown:
                at = origins[bisect.bisect_right(begins, source["offset"]) - 1]
                record["src"] = {"file": self.shown, "offset": at}
        return sorted((record for _, record in found), key=lambda record: int(record["src"].get("offset", 0)))

    def _note_progress(self, block: bytes, offset: int) -> None:
        """The last bars and losses of a block; the windows are read from the end, so those of an earlier block come before."""
        last = max(block.rfind(token) for token in _PROGRESS_TOKENS)
        if last < 0:
            return
        begin = max(0, last - _PROGRESS_CONTEXT_BYTES)
        end = last + LINE_BYTES
        found = [(offset + match.start(), match["bar"] or match["dict"]) for match in _PROGRESS.finditer(block, begin, end)]
        self.progress = sorted(self.progress + found)


def _distinct(block: bytes, candidates: np.ndarray) -> np.ndarray:
    """The first and the last of the candidates around which the text is the same but for digits."""
    groups = np.frombuffer(block, dtype="<u4", count=len(block) // GROUP_BYTES)
    index = candidates // GROUP_BYTES
    hashes = np.zeros(len(index), dtype=np.uint32)
    for shift in range(CONTEXT_GROUPS):
        hashes = (hashes ^ _without_digits(groups[np.minimum(index + shift, len(groups) - 1)])) * _MULTIPLIER
    hashes >>= np.uint32(32 - _HASH_BITS)
    kept = np.zeros(len(index), dtype=bool)
    for order in (slice(None), slice(None, None, -1)):
        seen = np.full(1 << _HASH_BITS, -1)
        # Of several assignments to one cell the last stays.
        seen[hashes[order]] = np.arange(len(index))[order]
        kept[seen[seen >= 0]] = True
    return candidates[kept]


def _without_digits(groups: np.ndarray) -> np.ndarray:
    """Groups of four bytes whose digits are all zeros: bytes with the high half 3 lose their low half."""
    halves = (groups & np.uint32(0xF0F0F0F0)) ^ np.uint32(0x30303030)
    others = (
        (halves >> np.uint32(4)) | (halves >> np.uint32(5)) | (halves >> np.uint32(6)) | (halves >> np.uint32(7))
    ) & np.uint32(0x01010101)
    return np.asarray(groups & (np.uint32(0xF0F0F0F0) | others * np.uint32(0x0F)))


def _seekable(path: str) -> IO[bytes]:
    """The log, open; a pipe is copied into a temporary file first."""
    if path == log_files.STANDARD_INPUT:
        return _copied(open(sys.stdin.fileno(), "rb", closefd=False))
    if storage.is_remote(path):
        return storage.open_read(path)
    if storage.is_special(path):
        return _copied(open(path, "rb"))
    with storage.reading(path):
        return log_files.open_file(path)


def _copied(pipe: IO[bytes]) -> IO[bytes]:
    file = tempfile.TemporaryFile()
    with pipe:
        shutil.copyfileobj(pipe, file, BLOCK_BYTES)
    return file
