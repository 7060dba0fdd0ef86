"""The `checksums.json` of a written checkpoint: lt-train compares each object with it at loading.

The checksums are computed while the files are written, so nothing is read again. The zip archives have no checksums of their
tensors, because a zip member's checksum precedes its values. Checksums have up to ten digits; spaces at the end of the file pad
shorter ones, so that the plan knows the size of every file.
"""

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence

from lt_convert.tensors.checksums import Piece
from lt_convert.tensors.output_files import OutputFile, Summary
from lt_shared.files.checksums import FileChecksums, crc32, joined_all

_LARGEST = 0xFFFFFFFF


def summary(directory: str, outputs: Sequence[OutputFile]) -> OutputFile:
    """The file for the `outputs` in a directory, which ends with a slash."""
    outputs = tuple(outputs)
    bounds = {output.name.removeprefix(directory): _bounds(output) for output in outputs}
    sizes = {name: [end - begin for begin, end in itertools.pairwise(offsets)] for name, offsets in bounds.items()}
    largest = FileChecksums({name: tuple((size, _LARGEST) for size in offsets) for name, offsets in sizes.items()}).to_bytes()

    def content(pieces: Iterable[Piece]) -> bytes:
        parts: dict[str, list[list[tuple[int, int]]]] = {name: [[] for _ in lengthsts] for name, lengthsts in sizes.items()}
        for name, offset, crc, length in _written(outputs, pieces):
            name = name.removeprefix(directory)
            parts[name][bisect.bisect_right(bounds[name], offset) - 1].append((crc, length))
        ranges = {
            name: tuple((size, joined_all(part)) for size, part in zip(sizes[name], lengthsts, strict=True))
            for name, lengthsts in parts.items()
        }
        record = FileChecksums(ranges).to_bytes()
        return record.rstrip().ljust(len(largest) - 1) + b"\n"

    return OutputFile(f"{directory}{FileChecksums.NAME}", (Summary(len(largest), content),))


def _written(outputs: Sequence[OutputFile], pieces: Iterable[Piece]) -> Iterator[tuple[str, int, int, int]]:
    """Yield (file, offset, CRC-32, size in bytes) of the outputs' content, in order, even of unwritten files without tensors."""
    with_tensors = {output.name for output in outputs if output.has_tensors}
    for piece in sorted(pieces, key=lambda piece: piece.offset):
        if piece.file in with_tensors and piece.length:
            assert piece.crc32 is not None
            yield piece.file, piece.offset, piece.crc32, piece.length
    for output in outputs:
        for offset, segment in output.segments_at() if not output.has_tensors else ():
            if isinstance(segment, bytes) and segment:
                yield output.name, offset, crc32(segment), len(segment)


def _bounds(output: OutputFile) -> list[int]:
    """Return the offsets between the ranges of a file: the bounds of its objects, and its own ends."""
    return sorted({0, *output.objects, output.size_bytes})
