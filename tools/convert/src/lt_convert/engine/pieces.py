"""Write a segment of an output file: its bytes block by block, then the `Piece` with their checksums."""

from collections.abc import Iterable, Iterator

from lt_convert.tensors.blocks import TensorReader
from lt_convert.tensors.checksums import Piece, new_hash
from lt_convert.tensors.output_files import OutputFile, Payload, Segment, Summary
from lt_shared.files.checksums import crc32


def contents(segment: bytes | Payload, blocks: TensorReader) -> Iterator[memoryview]:
    """The bytes of a segment, a block at a time; each is overwritten by the next."""
    if isinstance(segment, bytes):
        yield memoryview(segment)
        return
    yield from segment.contents(blocks)


def small_content(output: OutputFile, pieces: Iterable[Piece]) -> bytes:
    """The content of a file without tensors; a `Summary` in it is made from the pieces that are done."""
    return b"".join(_small(segment, pieces) for segment in output.segments)


def _small(segment: Segment, pieces: Iterable[Piece]) -> bytes:
    assert not isinstance(segment, Payload)
    return segment.content(pieces) if isinstance(segment, Summary) else segment


class PieceChecksums:
    """The checksums of a segment that is written block by block. `verify` uses the digest, readers of the result CRC-32."""

    def __init__(self) -> None:
        self._hash = new_hash()
        self._crc32 = 0

    def update(self, data: bytes | memoryview) -> None:
        self._hash.update(data)
        self._crc32 = crc32(data, self._crc32)

    def piece(self, name: str, offset: int, length: int, segment: Segment) -> Piece:
        tensor = segment.name if isinstance(segment, Payload) else ""
        return Piece(name, offset, length, self._hash.hexdigest(), tensor, self._crc32)


def piece_of(name: str, content: bytes) -> Piece:
    """Return the piece of a whole small file."""
    checksums = PieceChecksums()
    checksums.update(content)
    return checksums.piece(name, 0, len(content), content)
