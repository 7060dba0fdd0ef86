"""WARC archives of texts, such as Common Crawl's WET files: each `conversion` or `resource` record of plain text is a document.

The other records of these files describe the crawl and are passed over. A `response` record is a page as a server sent it: its
text would have to be extracted first, so it is an error.
"""

from collections.abc import Iterator

from lt_preprocess.readers import chunks
from lt_preprocess.readers.byte_stream import ByteStream
from lt_preprocess.readers.records import Record, TextRecord, UnusableRecord, too_long
from lt_shared.console import BadData

MAGIC = b"WARC/1."
_LONGEST_HEADER_BYTES = 1 << 16
_TEXT_KINDS = ("conversion", "resource")
_COPY_AGAIN = "download the file again"


def records(source: str, content: ByteStream) -> Iterator[Record]:
    """Yield the records of text. Raises BadData for a damaged or truncated archive and for one without texts."""
    kinds: set[str] = set()
    while True:
        begin = content.offset
        line = content.readline(_LONGEST_HEADER_BYTES)
        if line in (b"\r\n", b"\n"):
            continue
        if not line:
            break
        if not line.startswith(MAGIC):
            raise BadData(f"{source}, byte {begin} of the content: damaged WARC: no record begins here", _COPY_AGAIN)
        header = _header(source, content, begin)
        kind, size = header.get("warc-type", ""), _content_length(source, header, begin)
        kinds.add(kind)
        if kind == "response":
            raise BadData(
                f"{source}: holds web pages (response records), whose text is not extracted here",
                "name the WET file of the same crawl, or extract the texts as JSON lines (trafilatura, resiliparse)",
            )
        if kind in _TEXT_KINDS:
            yield _record(source, content, header, size, begin)
        elif content.skip(size) < size:
            raise _truncated(source, begin)
    if not kinds.intersection(_TEXT_KINDS):
        raise BadData(f"{source}: a WARC archive without texts: its records are {', '.join(sorted(kinds))}", "name a WET file")


def _record(source: str, content: ByteStream, header: dict[str, str], size: int, begin: int) -> Record:
    if size > chunks.LONGEST_LINE_BYTES:
        raise too_long(f"{source}, byte {begin} of the content", "a text")
    text = content.read(size)
    if len(text) < size:
        raise _truncated(source, begin)
    media_type = header.get("content-type", "text/plain").partition(";")[0].strip().lower()
    if media_type != "text/plain":
        return UnusableRecord(f"a {header['warc-type']} record of {media_type}, expected text/plain", text)
    return TextRecord(text)


def _header(source: str, content: ByteStream, begin: int) -> dict[str, str]:
    fields: dict[str, str] = {}
    name = ""
    while line := content.readline(_LONGEST_HEADER_BYTES):
        text = line.rstrip(b"\r\n").decode("utf-8", errors="replace")
        if not text:
            return fields
        if text[0] in " \t" and name:
            fields[name] += f" {text.strip()}"
            continue
        name, colon, value = text.partition(":")
        name = name.strip().lower()
        if not colon:
            raise BadData(f"{source}, byte {begin} of the content: damaged WARC: {text[:40]!r} is no field", _COPY_AGAIN)
        fields[name] = value.strip()
    raise _truncated(source, begin)


def _content_length(source: str, header: dict[str, str], begin: int) -> int:
    length = header.get("content-length", "")
    if not (length.isascii() and length.isdigit()):
        raise BadData(f"{source}, byte {begin} of the content: damaged WARC: Content-Length is {length[:40]!r}", _COPY_AGAIN)
    return int(length)


def _truncated(source: str, begin: int) -> BadData:
    return BadData(f"{source}, byte {begin} of the content: this WARC record is cut off", _COPY_AGAIN)
