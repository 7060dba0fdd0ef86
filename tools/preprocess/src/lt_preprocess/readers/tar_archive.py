"""Tar archives, such as shards of WebDataset: consecutive files whose names are equal up to the first dot are one sample.

A sample is a document. The text of a key is its file with this extension (`text` is also called `txt`), or else this key of the
object in its `json` file. In a `jsonl` file, every line is a document. Files with other extensions are passed over, and so are
files without an extension, as WebDataset does.

tarfile ends without an error at a damaged header, so only its parser of single headers is used.
"""

import itertools
import re
import tarfile
from collections.abc import Iterator
from typing import NamedTuple

from lt_preprocess.readers import chunks, json_line, text_keys
from lt_preprocess.readers.byte_stream import READ_BYTES, ByteStream
from lt_preprocess.readers.decompression import RECOGNISED_BYTES, decompressed, decompressor_for
from lt_preprocess.readers.paths import without_compression
from lt_preprocess.readers.records import JsonRecord, Record, too_long
from lt_shared.console import BadData

MAGIC, MAGIC_OFFSET = b"ustar", 257
_BLOCK_BYTES = 512
_LONGEST_NAME_BYTES = 1 << 20
_COPY_AGAIN = "copy the archive again"
_NAME = re.compile(r"((?:.*/|)[^./][^./]*)\.([^/]*)", re.DOTALL)
_TEXT_EXTENSIONS = ("txt", "text")
_LINES_EXTENSIONS = ("jsonl", "ndjson")
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_WITHOUT_CONTENT = (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE)


class _Member(NamedTuple):
    name: str
    size_bytes: int
    offset: int


class Sample(Record):
    """Files of one key: their contents by extension, and the extensions of the files that hold no text."""

    def __init__(self, name: str):
        self._name = name
        self._contents: dict[str, bytes] = {}
        self._passed_over: list[str] = []
        self.size_bytes = 0

    def add(self, extension: str, content: bytes | None) -> None:
        if content is None:
            self._passed_over.append(extension)
        else:
            self._contents[extension] = content
            self.size_bytes += len(content)

    def __contains__(self, extension: str) -> bool:
        return extension in self._contents or extension in self._passed_over

    def texts(self, json_key: str) -> list[bytes]:
        key = text_keys.name_of(json_key)
        extensions = (key, *_TEXT_EXTENSIONS) if key == "text" else (key,)
        for extension in extensions:
            if extension in self._contents:
                return [self._contents[extension]] if self._contents[extension] else []
        if "json" in self._contents:
            try:
                return JsonRecord(self._contents["json"]).texts(json_key)
            except json_line.Unusable as unusable:
                raise json_line.Unusable(f"sample {self._name!r}: {unusable}") from None
        if text_keys.is_optional(json_key):
            return []
        extensions_there = ", ".join([*self._contents, *self._passed_over][: json_line.NAMED_KEYS])
        raise json_line.Unusable(f"sample {self._name!r}: no text {key!r} among its files: {extensions_there}")

    def raw(self) -> bytes:
        return b"\n".join(self._contents.values())


def records(source: str, content: ByteStream) -> Iterator[Record]:
    """Yield the samples. Raises BadData for a damaged or truncated archive."""
    sample: Sample | None = None
    sample_name = ""
    for member in _members(source, content):
        match = _NAME.fullmatch(member.name)
        is_read = match is not None and not (member.name.startswith("__") and member.name.endswith("__"))
        extension = without_compression(match[2].lower()) if match else ""
        if match and is_read and extension in _LINES_EXTENSIONS:
            yield from _json_lines(source, content, member)
        elif match and is_read:
            if sample is not None and match[1] != sample_name:
                yield sample
                sample = None
            sample_name = match[1]
            sample = sample or Sample(sample_name)
            if extension in sample:
                raise BadData(
                    f"{source}, byte {member.offset} of the content: {member.name} is twice in sample {sample_name!r}",
                    "make the archive again: the files of a sample differ in their extensions",
                )
            has_text = extension == "json" or extension.rpartition(".")[2] in _TEXT_EXTENSIONS
            sample.add(extension, _content(source, content, member) if has_text else None)
        _skip(source, content, member, _end(member) - content.offset)
    if sample is not None:
        yield sample


def _members(source: str, content: ByteStream) -> Iterator[_Member]:
    """Yield the regular files; the caller reads or passes over their content. Archives joined by `cat` are read to their end."""
    long_name: str | None = None
    size_in_extension: int | None = None
    is_ended = False
    while True:
        begin = content.offset
        block = content.read(_BLOCK_BYTES)
        if not block:
            break
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            is_ended = True
            continue
        except tarfile.HeaderError as error:
            raise BadData(f"{source}, byte {begin} of the content: damaged tar archive: {error}", _COPY_AGAIN) from None
        is_ended = False
        if header.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE):
            extension = _small_content(source, content, _Member(header.name, header.size, begin))
            if header.type == tarfile.GNUTYPE_LONGNAME:
                long_name = extension.rstrip(b"\0").decode("utf-8", "surrogateescape")
            elif header.type == tarfile.XHDTYPE:
                fields = _pax_fields(source, extension, begin)
                long_name = fields.get("path", long_name)
                size_in_extension = int(fields["size"]) if fields.get("size", "").isdigit() else None
            continue
        size = header.size if size_in_extension is None else size_in_extension
        name = long_name or header.name
        long_name = size_in_extension = None
        if header.type in _FILES:
            yield _Member(name, size, content.offset)
        elif header.type not in _WITHOUT_CONTENT:
            raise BadData(
                f"{source}, byte {begin} of the content: {name} is of tar's type {header.type!r}, which is not read",
                "make the archive again without --sparse",
            )
    if not is_ended:
        raise BadData(f"{source}, byte {content.offset} of the content: the tar archive is cut off: no end mark", _COPY_AGAIN)


def _pax_fields(source: str, extension: bytes, begin: int) -> dict[str, str]:
    """Parse the records LENGTH KEY=VALUE of an extended header."""
    fields = {}
    while extension.strip(b"\0"):
        digits, _, _ = extension.partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        name, equals, value = extension[len(digits) + 1 : length - 1].partition(b"=")
        if not equals or length > len(extension):
            raise BadData(f"{source}, byte {begin} of the content: damaged tar archive: extended header", _COPY_AGAIN)
        fields[name.decode(errors="replace")] = value.decode("utf-8", "surrogateescape")
        extension = extension[length:]
    return fields


def _small_content(source: str, content: ByteStream, member: _Member) -> bytes:
    if member.size_bytes > _LONGEST_NAME_BYTES:
        raise BadData(f"{source}, byte {member.offset} of the content: damaged tar archive: a name too long", _COPY_AGAIN)
    member = member._replace(offset=content.offset)
    stored = content.read(member.size_bytes)
    _skip(source, content, member, _end(member) - content.offset)
    return stored


def _end(member: _Member) -> int:
    """The offset after the blocks of a file's content, which begins at `member.offset`."""
    return member.offset + -(-member.size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES


def _skip(source: str, content: ByteStream, member: _Member, size: int) -> None:
    if content.skip(size) < size:
        raise BadData(f"{source}, byte {member.offset} of the content: {member.name} is cut off", _COPY_AGAIN)


def _content(source: str, content: ByteStream, member: _Member) -> bytes:
    """Read a file of the archive, decompressed."""
    if member.size_bytes > chunks.LONGEST_LINE_BYTES:
        raise too_long(f"{source}, {member.name}", "a text")
    stored = b"".join(_pieces(source, content, member))
    if not decompressor_for(stored[:RECOGNISED_BYTES]):
        return stored
    text = bytearray()
    for piece in decompressed(f"{source}, {member.name}", stored, lambda: b""):
        text += piece
        if len(text) > chunks.LONGEST_LINE_BYTES:
            raise too_long(f"{source}, {member.name}", "a text")
    return bytes(text)


def _json_lines(source: str, content: ByteStream, member: _Member) -> Iterator[Record]:
    """Yield the lines of a file, which may be compressed, and may be larger than memory."""
    name = f"{source}, {member.name}"
    pieces = _pieces(source, content, member)
    start = next(pieces, b"")
    is_compressed = decompressor_for(start[:RECOGNISED_BYTES]) is not None
    stored = itertools.chain([start], pieces)
    lines = ByteStream(decompressed(name, b"", lambda: next(stored, b"")) if is_compressed else stored)
    for number in itertools.count(1):
        line = lines.readline(chunks.LONGEST_LINE_BYTES)
        if not line:
            return
        if len(line) == chunks.LONGEST_LINE_BYTES:
            raise chunks.line_too_long(name, number, lines.offset - len(line))
        if not line.isspace():
            yield _Line(line.rstrip(b"\r\n"), f"{member.name}, line {number}")


def _pieces(source: str, content: ByteStream, member: _Member) -> Iterator[bytes]:
    remaining = member.size_bytes
    while remaining:
        piece = content.read(min(remaining, READ_BYTES))
        if not piece:
            raise BadData(f"{source}, byte {member.offset} of the content: {member.name} is cut off", _COPY_AGAIN)
        remaining -= len(piece)
        yield piece


class _Line(JsonRecord):
    """A line of a file in the archive."""

    def __init__(self, line: bytes, place: str):
        super().__init__(line)
        self._place = place

    def texts(self, json_key: str) -> list[bytes]:
        try:
            return super().texts(json_key)
        except json_line.Unusable as unusable:
            raise json_line.Unusable(f"{self._place}: {unusable}") from None
