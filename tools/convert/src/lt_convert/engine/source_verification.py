"""The checksums that were recorded beside a source when it was written: by lt-train, by lt-convert, or in its archives."""

import os
from collections.abc import Iterable

from lt_convert.engine.receipt import ConversionRecord
from lt_convert.formats import FORMATS
from lt_convert.tensors.checksums import Checksums
from lt_convert.tensors.source_checksums import Range, SourceChecksums
from lt_convert.tensors.source_files import Files
from lt_shared.files import storage
from lt_shared.files.checksums import FileChecksums


def open_checksums(sources: Iterable[tuple[str, str, list[str]]]) -> SourceChecksums:
    """Read the recorded checksums of `sources`: pairs of a directory, its format, and its file names. Raises BadData.

    `checksums.json` covers a directory. `lt-convert.json` is in it, or beside it in the directory of the run.
    """
    ranges: dict[str, list[Range]] = {}
    complete: list[str] = []
    for directory, source_format, names in sources:
        recorded, is_complete = _recorded(directory, source_format, names)
        ranges |= recorded
        complete += [directory] if is_complete else []
    return SourceChecksums(
        {path: file_ranges for path, file_ranges in ranges.items() if not path.endswith(f"/{FileChecksums.NAME}")}, complete
    )


def _recorded(directory: str, source_format: str, names: list[str]) -> tuple[dict[str, list[Range]], bool]:
    """Read a source's recorded ranges, and whether they cover its whole directory."""
    ranges: dict[str, list[Range]] = {}
    for place in (directory, directory.rpartition("/")[0]):
        record = ConversionRecord.read(place) if place and not _is_planted(place, directory) else None
        if record:
            ranges |= _of_conversion(place, record.files)
    if not FORMATS[source_format].has_checksums or FileChecksums.NAME not in names:
        return ranges, False
    path = f"{directory}/{FileChecksums.NAME}"
    with Files() as files:
        checksums = FileChecksums.parse(files.read(path, 0, files.size_bytes(path)), path)
    of_files = {f"{directory}/{name}": _in_order(sizes) for name, sizes in checksums.ranges.items()}
    # A conversion's own record names the tensors. Those before 2026-11-23 have no CRC-32.
    ranges |= of_files | {
        name: file_ranges for name, file_ranges in ranges.items() if all(one.crc32 is not None for one in file_ranges)
    }
    ranges.setdefault(path, [])
    return ranges, True


def _is_planted(place: str, directory: str) -> bool:
    """Whether somebody has put a record above a source that is not his: it must not decide whether that is converted."""
    path = f"{place}/{Checksums.RECORD}"
    if place == directory or storage.is_remote(directory) or not os.path.lexists(path):
        return False
    return os.lstat(path).st_uid not in (0, os.geteuid(), os.stat(directory).st_uid)


def _of_conversion(place: str, checksums: Checksums) -> dict[str, list[Range]]:
    return {
        f"{place}/{name}": [
            Range(piece.offset, piece.length, piece.crc32, piece.digest, piece.tensor) for piece in checksums.pieces.get(name, ())
        ]
        for name in checksums.sizes
    }


def _in_order(sizes: Iterable[tuple[int, int]]) -> list[Range]:
    ranges, start = [], 0
    for size, crc in sizes:
        ranges.append(Range(start, size, crc))
        start += size
    return ranges
