"""The digest and the CRC-32 of every byte range that a conversion wrote: part of `lt-convert.json` beside the result.

A tensor's range has exactly its values, so the same tensor has the same digest in two results, whatever file it is in.

The digest is XXH3 with 128 bits, as hexadecimal digits. It finds damage as surely as SHA-256, which took a third of a copy's
CPU time and was the digest until 2026-11-30: 64 digits instead of 32.
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self

import xxhash

_SHA256_DIGITS = 64


class Hash(Protocol):
    """A hash function with the interface of `hashlib`."""

    def update(self, data: bytes | memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


def new_hash(digest: str = "") -> Hash:
    """Return the hash function that made `digest`; without one, the function for new results."""
    return hashlib.sha256() if len(digest) == _SHA256_DIGITS else xxhash.xxh3_128()


@dataclasses.dataclass(frozen=True)
class Piece:
    """`length` bytes of a file from byte `offset`; `tensor` is the tensor's name, empty for other content.

    Conversions before 2026-11-23 have no `crc32`.
    """

    file: str
    offset: int
    length: int
    digest: str
    tensor: str
    crc32: int | None = None


@dataclasses.dataclass(frozen=True)
class Checksums:
    """The pieces of every file, in order, and its size in bytes: together they cover it."""

    RECORD: ClassVar[str] = "lt-convert.json"

    sizes: Mapping[str, int]
    pieces: Mapping[str, Sequence[Piece]]

    @classmethod
    def of(cls, files: Iterable[tuple[str, int]], pieces: Iterable[Piece]) -> Self:
        by_file: dict[str, list[Piece]] = {}
        for piece in pieces:
            by_file.setdefault(piece.file, []).append(piece)
        ordered = {name: sorted(pieces_of_file, key=lambda piece: piece.offset) for name, pieces_of_file in by_file.items()}
        return cls(dict(files), ordered)

    def to_record(self) -> dict[str, Any]:
        return {
            name: {"bytes": size, "pieces": [list(dataclasses.astuple(piece))[1:] for piece in self.pieces.get(name, ())]}
            for name, size in self.sizes.items()
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        """Raises KeyError, TypeError, AttributeError or ValueError for a malformed record, or one that names files outside."""
        outside = [name for name in record if name.startswith("/") or ".." in name.split("/")]
        if outside:
            raise ValueError(f"names a file outside the directory: {outside[0]!r}")
        sizes = {name: int(entry["bytes"]) for name, entry in record.items()}
        pieces = [Piece(name, *piece) for name, entry in record.items() for piece in entry["pieces"]]
        for piece in pieces:
            numbers = (piece.offset, piece.length, piece.crc32 or 0)
            if (
                not all(type(number) is int and number >= 0 for number in numbers)
                or not isinstance(piece.digest, str)
                or not isinstance(piece.tensor, str)
            ):
                raise ValueError(f"a piece of {piece.file} is malformed")
        return cls.of(sizes.items(), pieces)

    @property
    def tensors(self) -> dict[str, list[str]]:
        """The digests of every tensor's chunks, by the tensor's name."""
        by_tensor: dict[str, list[str]] = {}
        for pieces in self.pieces.values():
            for piece in pieces:
                if piece.tensor:
                    by_tensor.setdefault(piece.tensor, []).append(piece.digest)
        return by_tensor
