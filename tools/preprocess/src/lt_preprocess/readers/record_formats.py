"""Choose the reader of a format of rows by the first bytes of the content."""

from collections.abc import Callable, Iterator, Sequence

from lt_preprocess.readers import arrow, foreign_formats, litdata, mds, tar_archive, text_keys, text_table, warc
from lt_preprocess.readers.byte_stream import ByteStream
from lt_preprocess.readers.chunks import Chunk, Position
from lt_preprocess.readers.paths import STDIN, display_name, is_text
from lt_preprocess.readers.records import Record, record_chunks
from lt_shared.console import BadData

Reader = Callable[[ByteStream, Position], Iterator[Chunk]]


def reader_for(path: str, start: bytes, json_keys: Sequence[str]) -> Reader | None:
    """Return the reader for content that begins with `start`, the first HEAD_BYTES; None if it is no format of rows.

    `path` is only asked for what bytes cannot tell: a text that begins like another format, a table of one column.
    """
    source = display_name(path)
    if start[tar_archive.MAGIC_OFFSET :].startswith(tar_archive.MAGIC):
        return _of_records(source, lambda content: tar_archive.records(source, content))
    if start.startswith((arrow.FILE_MAGIC, arrow.STREAM_MAGIC)) and not is_text(path):
        return lambda content, position: arrow.row_chunks(source, content, json_keys, position)
    if start.startswith(warc.MAGIC) and not is_text(path):
        return _of_records(source, lambda content: warc.records(source, content))
    if any(map(text_keys.is_record, json_keys)):
        _refuse_tables(path, start, source)
        return None
    if litdata.is_chunk(start) and path != STDIN and (layout := litdata.layout_beside(path)):
        return lambda content, position: litdata.chunks(source, content, layout, json_keys, position)
    if mds.is_shard(start):
        return _of_records(source, lambda content: mds.records(source, content, json_keys))
    if text_table.is_table(path, start, json_keys) and not foreign_formats.has_signature(start):
        return _of_records(source, lambda content: text_table.records(source, content, json_keys))
    return None


def _refuse_tables(path: str, start: bytes, source: str) -> None:
    """Refuse the formats whose fields are texts when whole records are asked for. Raises BadData."""
    if litdata.is_chunk(start) or mds.is_shard(start) or text_table.is_table(path, start, ()):
        raise BadData(f"{source}: a table of texts holds no conversations", "write JSON lines or Parquet with a list of messages")


def _of_records(source: str, records: Callable[[ByteStream], Iterator[Record]]) -> Reader:
    return lambda content, position: record_chunks(source, records(content), position)
