"""Tables of text: CSV, TSV and other separators, with quotes as in RFC 4180. The first row names the columns.

A field in quotes may hold separators, doubled quotes and line breaks. Every value is text, `NA` and an empty field, too. A row
with more or fewer fields than the first row is a bad row. Quotes that do not match would join rows, so they are an error.
"""

import csv
import io
import itertools
import re
import shlex
from collections.abc import Iterator, Sequence

from lt_preprocess.readers import chunks, text_keys
from lt_preprocess.readers.byte_stream import ByteStream
from lt_preprocess.readers.paths import STDIN, display_name, is_text, without_compression
from lt_preprocess.readers.records import FieldsRecord, Record, UnusableRecord
from lt_shared.console import BadData

SEPARATORS = (",", "\t", ";", "|")
SUFFIXES = (".csv", ".tsv", ".psv")
_LINES_LOOKED_AT = 3
_LINES_OF_NAMES = 100
_IN_QUOTES = re.compile(r'"[^"]*"')
_BARE_RETURN = re.compile(r"\r(?!\n|$)")


def is_table(path: str, start: bytes, json_keys: Sequence[str]) -> bool:
    """Whether a file that begins with `start` is a table: by its name, or because its first row names the keys."""
    if start.lstrip().startswith((b"{", b"[", b"<")) or is_text(path) or not start.strip():
        return False
    return without_compression(path.lower()).endswith(SUFFIXES) or (
        looks_like_table(start)
        and any(_has_keys(_header(start.decode("utf-8-sig", "replace"), separator), json_keys) for separator in SEPARATORS)
    )


def is_undecided(start: bytes) -> bool:
    """Whether more bytes must tell whether this is a table: fewer lines than are looked at, and no JSON."""
    return start.count(b"\n") < _LINES_LOOKED_AT and not start.lstrip().startswith((b"{", b"[", b"<"))


def looks_like_table(start: bytes) -> bool:
    """Whether the first lines are not JSON and contain one separator equally often."""
    lines = start.split(b"\n")[:-1][:_LINES_LOOKED_AT]
    if len(lines) < _LINES_LOOKED_AT or any(line.lstrip().startswith((b"{", b"[")) for line in lines):
        return False
    return any(len({line.count(mark) for line in lines}) == 1 and mark in lines[0] for mark in (b",", b"\t", b";", b"|"))


def records(source: str, content: ByteStream, json_keys: Sequence[str]) -> Iterator[Record]:
    """Yield a record for each row after the first.

    Raises BadData for a table without the columns of the keys, and for quotes that do not match.
    """
    csv.field_size_limit(chunks.LONGEST_LINE_BYTES)
    lines = _lines(content)
    first_lines = _first_row_lines(lines)
    if _BARE_RETURN.search(_IN_QUOTES.sub("", "".join(first_lines))):
        raise BadData(
            f"{source}: a table whose lines end in a carriage return alone",
            f"tr '\\r' '\\n' < {'FILE' if source == display_name(STDIN) else shlex.quote(source)} | lt-preprocess - ...",
        )
    separator = _separator(source, "".join(first_lines), json_keys)
    reader = csv.reader(itertools.chain(first_lines, lines), delimiter=separator, strict=True)
    try:
        names = next(reader)
        read_names = text_keys.names(json_keys)
        if repeated := next((name for name in read_names if names.count(name) > 1), None):
            raise BadData(f"{source}: {names.count(repeated)} columns are called {repeated!r}", "rename all but one of them")
        for row in reader:
            if row:
                yield _record(row, names, read_names)
    except csv.Error as error:
        raise BadData(
            f"{source}, line {reader.line_num}: not a table of text: {error}",
            "write it again with quotes around fields that hold quotes, separators or line breaks",
        ) from None


def _record(row: list[str], names: list[str], read_names: Sequence[str]) -> Record:
    if len(row) != len(names):
        return UnusableRecord(f"{len(row)} fields, the first row has {len(names)}", _bytes(",".join(row)))
    return FieldsRecord({name: _bytes(value) for name, value in zip(names, row, strict=True) if name in read_names})


def _lines(content: ByteStream) -> Iterator[str]:
    longest = chunks.LONGEST_LINE_BYTES
    encoding = "utf-8-sig"
    while line := content.readline(longest):
        # Bytes that are not UTF-8 become lone surrogates, and these bytes again when the row is encoded.
        yield line.decode(encoding, errors="surrogateescape")
        encoding = "utf-8"


def _first_row_lines(lines: Iterator[str]) -> list[str]:
    """Take the lines of the first row: names in quotes may hold line breaks, so lines are taken until quotes match."""
    first_lines: list[str] = []
    is_open = False
    for line in itertools.islice(lines, _LINES_OF_NAMES):
        first_lines.append(line)
        is_open ^= line.count('"') % 2 == 1
        if not is_open:
            break
    return first_lines


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _separator(source: str, first_row: str, json_keys: Sequence[str]) -> str:
    """Return the separator that splits the first row into names with all keys among them."""
    for separator in SEPARATORS:
        if _has_keys(_header(first_row, separator), json_keys):
            return separator
    names = max((_header(first_row, separator) for separator in SEPARATORS), key=len)
    missing = next(key for key in text_keys.names(json_keys) if key not in names)
    raise BadData(
        f"{source}: no column {missing!r} in the first row, which has {', '.join(repr(name)[:40] for name in names[:8])}",
        "--json-keys names the column that has the text; a table needs a first row with the names of its columns",
    )


def _header(text: str, separator: str) -> list[str]:
    try:
        return next(csv.reader(io.StringIO(text, newline=""), delimiter=separator), [])
    except csv.Error:
        return []


def _has_keys(names: Sequence[str], json_keys: Sequence[str]) -> bool:
    required = text_keys.required(json_keys)
    return all(key in names for key in required) and any(key in names for key in text_keys.names(json_keys))
