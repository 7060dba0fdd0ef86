"""Compare the bytes read from a checkpoint with the checksums that were recorded when it was written.

The bytes pass through anyway. Every read is cut at the recorded ranges, and its CRC-32 is stored with the interval that it
covers: a read that continues an interval extends its checksum, in any order and from any thread. When the intervals cover a
range, their combined checksum is compared with the recorded one, and a difference is an error at once. A few bytes remain at
the end: bytes that no conversion needs, such as headers between tensors, and bytes that an earlier, interrupted run has read.
`finish` reads them. One checksum more costs 30 microseconds for a block that takes 500 to hash and write.
"""

import bisect
import dataclasses
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence

from lt_convert.tensors.checksums import new_hash
from lt_convert.tensors.source_files import DAMAGED, Extent, Files, Interval, Reader
from lt_shared.console import BadData
from lt_shared.files.checksums import crc32, joined_all

# Smaller ranges are checked as a whole after the first read: they are configurations, metadata and objects.
SMALL_BYTES = 16 << 20
READ_BYTES = 1 << 20
# Joining the checksums of two intervals takes about as long as reading so many bytes again.
SHORT_BYTES = 64 << 10
PREFETCHED_RANGES = 1000


@dataclasses.dataclass
class Range:
    """`size_bytes` of a file from `start` with their recorded checksum: `crc32`, or `digest` alone. `name` is the tensor's."""

    start: int
    size_bytes: int
    crc32: int | None
    digest: str = ""
    name: str = ""
    is_checked: bool = False
    # (start, end, CRC-32) of the bytes that were read, in order, without overlaps.
    intervals: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)

    @property
    def end(self) -> int:
        return self.start + self.size_bytes


class SourceChecksums(Reader):
    """The recorded ranges of a source's files, by path, each file's in order and without gaps. Safe to use from many threads."""

    def __init__(self, recorded: Mapping[str, Sequence[Range]] | None = None, complete: Iterable[str] = ()):
        """`complete` are directories with a checksum for every file."""
        self._ranges = {path: [one for one in ranges if one.size_bytes] for path, ranges in (recorded or {}).items()}
        self._starts = {path: [one.start for one in ranges] for path, ranges in self._ranges.items()}
        self._complete = frozenset(complete)
        self._recorded = frozenset(self._ranges)
        self._lock = threading.Lock()

    def opened(self, path: str, size_bytes: int) -> None:
        """Raises BadData for a file whose size is not the recorded one, or that should be recorded and is not."""
        if path in self._recorded:
            expected = self._ranges[path][-1].end if self._ranges[path] else 0
            if size_bytes != expected:
                raise BadData(f"{path}: {size_bytes} bytes, {expected} were recorded", DAMAGED)
        elif path.rpartition("/")[0] in self._complete:
            raise BadData(f"{path}: the checksums beside it do not name it", DAMAGED)

    def is_recorded(self, path: str) -> bool:
        return path in self._recorded

    def named(self, path: str, offset: int, name: str) -> None:
        for one in self._overlapping(path, offset, offset + 1):
            if not one.name:
                one.name = name

    def expect(self, path: str, offset: int, size_bytes: int, crc32: int, name: str) -> None:
        """Record a checksum that was found inside a file, unless there is a record of the file itself."""
        with self._lock:
            if path in self._recorded or size_bytes == 0:
                return
            ranges, starts = self._ranges.setdefault(path, []), self._starts.setdefault(path, [])
            index = bisect.bisect_left(starts, offset)
            if index < len(starts) and starts[index] == offset:
                return
            ranges.insert(index, Range(offset, size_bytes, crc32, name=name))
            starts.insert(index, offset)

    def was_read(self, path: str, offset: int, data: memoryview | bytes) -> None:
        """Raises BadData when these bytes complete a range, and it is not as recorded."""
        for one in self._overlapping(path, offset, offset + len(data)):
            if one.is_checked or one.crc32 is None:
                one.intervals = one.intervals or [(one.start, one.start, 0)]
                continue
            with self._lock:
                gaps = list(_gaps(one, max(offset, one.start), min(offset + len(data), one.end)))
            for begin, end in gaps:
                self._add(one, begin, end, memoryview(data)[begin - offset : end - offset])
            with self._lock:
                is_covered = not one.is_checked and not any(True for _ in _gaps(one, one.start, one.end))
                one.is_checked = one.is_checked or is_covered
                intervals = list(one.intervals)
            if is_covered:
                self._compare(path, one, joined_all((crc, end - begin) for begin, end, crc in intervals))

    def _overlapping(self, path: str, begin: int, end: int) -> Sequence[Range]:
        starts = self._starts.get(path)
        if not starts or begin >= end:
            return ()
        with self._lock:
            first = max(0, bisect.bisect_right(starts, begin) - 1)
            overlapping = self._ranges[path][first : bisect.bisect_left(starts, end)]
        return [one for one in overlapping if one.end > begin and one.size_bytes]

    def _add(self, one: Range, begin: int, end: int, data: memoryview) -> None:
        """Note that these bytes of a range were read; the interval that ends where they begin is extended."""
        with self._lock:
            before = next((interval for interval in one.intervals if interval[1] == begin), None)
            if before is not None:
                one.intervals.remove(before)
        start, checksum = (before[0], before[2]) if before else (begin, 0)
        checksum = crc32(data, checksum)
        with self._lock:
            if any(interval[0] < end and start < interval[1] for interval in one.intervals):
                # Another thread has read the same bytes at the same time. The ones before them are read again in the end.
                return
            bisect.insort(one.intervals, (start, end, checksum))

    def _compare(self, path: str, one: Range, checksum: int) -> None:
        if checksum != one.crc32:
            raise _changed(path, one)

    def planned(self, views: Iterable[Extent], files: Files, other_views: Iterable[Extent] = ()) -> None:
        """Read short gaps between the views and the ends of their ranges, and the remaining bytes of short ranges.

        On a remote store these bytes are in blocks that the planning has fetched.
        """
        used: dict[int, tuple[str, Range, int, int]] = {}
        for path, begin, end in views:
            for one in self._overlapping(path, begin, end):
                _, _, first, last = used.get(id(one), (path, one, one.end, one.start))
                used[id(one)] = path, one, min(first, max(begin, one.start)), max(last, min(end, one.end))
        used_elsewhere = self._touched(other_views).keys() - used.keys()
        gaps = [(path, *gap) for path, one, first, last in used.values() for gap in ((one.start, first), (last, one.end))]
        for path, ranges in self._ranges.items():
            short = (one for one in ranges if one.intervals and one.size_bytes <= SHORT_BYTES and id(one) not in used)
            gaps += [(path, *gap) for one in short if id(one) not in used_elsewhere for gap in _gaps(one, one.start, one.end)]
        for path, begin, end in gaps:
            if 0 < end - begin <= SHORT_BYTES:
                files.read(path, begin, end - begin)

    def _touched(self, views: Iterable[Extent]) -> dict[int, tuple[str, Range]]:
        """The ranges that overlap the views, by their identity."""
        return {id(one): (path, one) for path, begin, end in views for one in self._overlapping(path, begin, end)}

    def finish(
        self, views: Iterable[Extent], other_views: Iterable[Extent] = (), share: tuple[int, int] = (0, 1)
    ) -> list[Interval]:
        """Check the remaining bytes in every range that `views` touch, and in small ranges that were read.

        A range that `other_views` touch, too, is not read to its end here: its intervals are returned. Small ranges that no view
        touches are divided among the processes. Raises BadData for the first range that differs from its record.
        """
        if not self._ranges:
            return []
        number, count = share
        touched, elsewhere = self._touched(views), self._touched(other_views)
        untouched = {
            id(one): (path, one)
            for path, ranges in self._ranges.items()
            for one in ranges
            if one.intervals and one.size_bytes <= SMALL_BYTES and id(one) not in touched and id(one) not in elsewhere
        }
        unchecked = [entry for key, entry in touched.items() if key not in elsewhere] + [*untouched.values()][number::count]
        self._check_ends([(path, one) for path, one in unchecked if not one.is_checked])
        shared = [entry for key, entry in touched.items() if key in elsewhere]
        # A range without an interval is read as a whole in the end.
        return [
            (path, *interval)
            for path, one in shared
            if not one.is_checked or one.crc32 is None
            for interval in (_long(one) or [(one.start, one.start, 0)])
        ]

    def join(self, intervals: Iterable[Interval]) -> None:
        """Check the ranges that several processes have read; the bytes that no process has read are read now."""
        by_range: dict[int, tuple[str, Range, list[tuple[int, int, int]]]] = {}
        for path, begin, end, checksum in intervals:
            for one in self._overlapping(path, begin, max(end, begin + 1)):
                if not one.is_checked and one.start <= begin and end <= one.end:
                    by_range.setdefault(id(one), (path, one, []))[2].append((begin, end, checksum))
        for _, one, read in by_range.values():
            one.intervals = []
            for begin, end, checksum in sorted(read, key=lambda interval: (interval[0], -interval[1])):
                if begin >= (one.intervals[-1][1] if one.intervals else one.start):
                    one.intervals.append((begin, end, checksum))
        self._check_ends([(path, one) for path, one, _ in by_range.values()])

    def _check_ends(self, pending: Sequence[tuple[str, Range]]) -> None:
        """Read the remaining bytes in these ranges, and compare every range with its record."""
        with Files() as files:
            for number, (path, one) in enumerate(pending):
                if number % PREFETCHED_RANGES == 0:
                    ahead = pending[number : number + PREFETCHED_RANGES]
                    files.prefetch(
                        (name, begin, end - begin)
                        for name, each in ahead
                        for begin, end in _unread(each)
                        if end - begin <= SHORT_BYTES
                    )
                self._check_rest(path, one, files)

    def _check_rest(self, path: str, one: Range, files: Files) -> None:
        one.is_checked = True
        if one.crc32 is None:
            hasher = new_hash(one.digest)
            for position, length in _blocks(one.start, one.end):
                hasher.update(files.read(path, position, length))
            if hasher.hexdigest() != one.digest:
                raise _changed(path, one)
            return
        parts = [(checksum, end - begin) for begin, end, checksum in _long(one)]
        for number, (begin, end) in enumerate(_unread(one)):
            checksum = 0
            for offset, length in _blocks(begin, end):
                checksum = crc32(files.read(path, offset, length), checksum)
            parts.insert(2 * number, (checksum, end - begin))
        self._compare(path, one, joined_all(part for part in parts if part[1]))


def _changed(path: str, one: Range) -> BadData:
    what = one.name or f"bytes {one.start:,} to {one.end:,}"
    return BadData(f"{path}: {what}: not as it was written, by its checksum", DAMAGED)


def _long(one: Range) -> list[tuple[int, int, int]]:
    """The intervals of a range whose checksums are used; the others are read again."""
    return [interval for interval in one.intervals if interval[1] - interval[0] > SHORT_BYTES]


def _unread(one: Range) -> list[tuple[int, int]]:
    """Return the gaps before, between and after the long intervals of a range; a gap may be empty."""
    ends = [one.start, *(end for _, end, _ in _long(one))]
    return list(zip(ends, [*(begin for begin, _, _ in _long(one)), one.end], strict=True))


def _gaps(one: Range, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """What of `begin` to `end` the range's intervals do not cover."""
    for first, last, _ in one.intervals:
        if last <= begin:
            continue
        if first >= end:
            break
        if first > begin:
            yield begin, first
        begin = max(begin, last)
    if begin < end:
        yield begin, end


def _blocks(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """(offset, length) of blocks from `begin` to `end`."""
    for offset in range(begin, end, READ_BYTES):
        yield offset, min(READ_BYTES, end - offset)
