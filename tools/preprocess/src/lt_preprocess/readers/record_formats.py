"""Choose the reader of a format of records by the first bytes of the content."""

from collections.abc import Callable, Iterator, Sequence

from lt_preprocess.readers import tar_archive, text_table, warc
from lt_preprocess.readers.byte_stream import ByteStream
from lt_preprocess.readers.paths import display_name, is_text
from lt_preprocess.readers.records import Record

Reader = Callable[[ByteStream], Iterator[Record]]


def reader_for(path: str, start: bytes, json_keys: Sequence[str]) -> Reader | None:
    """Return the reader for content that begins with `start`, the first HEAD_BYTES; None if it is no format of records.

    `path` is only asked for what bytes cannot tell: a text that begins like a WARC archive, a table of one column.
    """
    source = display_name(path)
    if start[tar_archive.MAGIC_OFFSET :].startswith(tar_archive.MAGIC):
        return lambda content: tar_archive.records(source, content)
    if start.startswith(warc.MAGIC) and not is_text(path):
        return lambda content: warc.records(source, content)
    if text_table.is_table(path, start, json_keys):
        return lambda content: text_table.records(source, content, start, json_keys)
    return None
