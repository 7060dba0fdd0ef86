"""Chunks of litdata: an item is a document; `index.json` beside the chunks describes the items.

A chunk begins with the number of items and where each begins and ends (uint32). Newer versions leave all items empty, and append
the rows as an Arrow file, after them its size and a magic number.
"""

import itertools
import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lt_preprocess.readers import arrow, text_keys
from lt_preprocess.readers.byte_stream import READ_BYTES, ByteStream
from lt_preprocess.readers.chunks import Chunk, Position
from lt_preprocess.readers.decompression import decompressed
from lt_preprocess.readers.records import FieldsRecord, Record, TextRecord, record_chunks
from lt_shared.console import BadData
from lt_shared.files import storage

INDEX = "index.json"
FRAMED_MAGIC = b"LDFZ01\0\0"
_FRAMED_HEADER = struct.Struct("<8sHHIII")
_GROUP_BYTES = 24
ARROW_END_MARK = b"LDARW01\0"
_COPY_AGAIN = "copy the chunk again"


class Layout(NamedTuple):
    """What an item holds: a name, None if it is no dictionary, and a format for each value."""

    names: list[str | None]
    formats: list[str]
    item_loader: str | None
    compression_level: str | None = None


def is_chunk(start: bytes) -> bool:
    """Whether a file begins like a chunk: the first item begins after the offsets."""
    if start.startswith(FRAMED_MAGIC):
        return True
    if len(start) < 12:
        return False
    items, first, second = struct.unpack_from("<3I", start)
    return bool(items > 0 and first == 4 * (items + 2) and first <= second)


def layout_beside(path: str) -> Layout | None:
    """Read the layout of items from the index beside a chunk; None without such an index. Raises BadData if it is malformed."""
    index_path = f"{path.rpartition('/')[0]}/{INDEX}" if "/" in path else INDEX
    if not storage.exists(index_path):
        return None
    try:
        index = json.loads(storage.read_record(index_path))
        return layout_of(index_path, index) if listed_files(index) is not None else None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadData(f"{index_path}: malformed index of litdata", "copy it again") from None


def layout_of(path: str, index: dict[str, Any]) -> Layout:
    config = index["config"]
    if config.get("encryption"):
        raise BadData(f"{path}: a litdata dataset that is encrypted", "write it again without encryption")
    _, spec = json.loads(config["data_spec"])
    names: list[str | None] = [None]
    if spec["type"] == "builtins.dict":
        names = [str(name) for name in json.loads(spec["context"])]
    elif spec["type"] is not None:
        names = [str(number) for number in range(len(spec["children_spec"]))]
    formats = [str(data_format) for data_format in config["data_format"]]
    if len(names) != len(formats):
        raise ValueError("names and formats of several lengths")
    return Layout(names, formats, config.get("item_loader"), config.get("compression_level"))


def items(source: str, content: ByteStream, layout: Layout) -> Iterator[list[bytes]]:
    """Yield the stored values item by item. Raises BadData for a damaged chunk."""
    ends = read_ends(source, content)
    fields = 1 if layout.item_loader == "TokensLoader" else len(layout.formats)
    for number, size in enumerate(np.diff(ends).tolist(), 1):
        data = content.read(size)
        if len(data) < size:
            raise damaged(source, content.offset, f"item {number} is cut off")
        if layout.compression_level == "sample":
            data = b"".join(decompressed(f"{source}, item {number}", data, lambda: b""))
            size = len(data)
        if layout.item_loader == "TokensLoader":
            yield [data]
            continue
        sizes = struct.unpack_from(f"<{fields}I", data) if size >= 4 * fields else ()
        if size < 4 * fields or 4 * fields + sum(sizes) != size:
            raise damaged(source, content.offset, f"item {number} has {size} bytes, not as many as its values")
        bounds = np.cumsum([4 * fields, *sizes]).tolist()
        yield [data[begin:end] for begin, end in itertools.pairwise(bounds)]
    last_bytes = b""
    while piece := content.read(READ_BYTES):
        last_bytes = (last_bytes + piece)[-len(ARROW_END_MARK) :]
    if last_bytes not in (b"", ARROW_END_MARK):
        raise damaged(source, content.offset, "more bytes follow the last item")


def read_ends(source: str, content: ByteStream) -> npt.NDArray[np.int64]:
    """Read the offsets of the items in the chunk, and the end of the last."""
    (count,) = struct.unpack("<I", content.read(4))
    stored = content.read(4 * (count + 1))
    if len(stored) < 4 * (count + 1):
        raise damaged(source, content.offset, "cut off")
    ends = np.frombuffer(stored, np.uint32).astype(np.int64)
    if bool(np.any(np.diff(ends) < 0)):
        raise damaged(source, content.offset, "an item ends before it begins")
    return ends


def chunks(source: str, content: ByteStream, layout: Layout, json_keys: Sequence[str], start: Position) -> Iterator[Chunk]:
    """Yield the items from `start` on. Raises BadData for values that are no text, and for damage."""
    _check_keys(source, layout, json_keys)
    header = content.read(8)
    if header == FRAMED_MAGIC:
        content = unframed(source, content.preceded_by(header))
        header = content.read(8)
    count, first = struct.unpack("<2I", header)
    whole_header = header + content.read(4 * count)
    if struct.unpack_from("<I", whole_header, len(whole_header) - 4) == (first,) and None not in layout.names:
        yield from arrow.row_chunks(source, content, json_keys, start, ARROW_END_MARK)
    else:
        records = _records(source, content.preceded_by(whole_header), layout, json_keys)
        yield from record_chunks(source, records, start)


def unframed(source: str, content: ByteStream) -> ByteStream:
    """Return the chunk whose items are compressed in groups, not compressed."""
    header = content.read(_FRAMED_HEADER.size)
    if len(header) < _FRAMED_HEADER.size:
        raise damaged(source, content.offset, "cut off")
    _, version, _, count, _, groups = _FRAMED_HEADER.unpack(header)
    if version != 1:
        raise BadData(f"{source}: a litdata chunk of version {version}, known is 1", "write it again without compression")
    stored = content.read(4 * (count + 1))
    if len(stored) < 4 * (count + 1) or content.skip(_GROUP_BYTES * groups) < _GROUP_BYTES * groups:
        raise damaged(source, content.offset, "cut off")
    ends = np.frombuffer(stored, np.uint32) + np.uint32(4 * (count + 2))
    items_of_groups = decompressed(source, b"", lambda: content.read(READ_BYTES))
    return ByteStream(itertools.chain([struct.pack("<I", count), ends.tobytes()], items_of_groups))


def _records(source: str, content: ByteStream, layout: Layout, json_keys: Sequence[str]) -> Iterator[Record]:
    names = text_keys.names(json_keys)
    for values in items(source, content, layout):
        if layout.names == [None]:
            yield TextRecord(values[0])
        else:
            by_name = zip(layout.names, values, strict=True)
            yield FieldsRecord({name: value for name, value in by_name if name is not None and name in names})


def _check_keys(source: str, layout: Layout, json_keys: Sequence[str]) -> None:
    formats = dict(zip(layout.names, layout.formats, strict=True))
    for key in text_keys.names(json_keys):
        data_format = formats.get(None, formats.get(key))
        if data_format is None and key not in json_keys:
            continue
        if data_format is None:
            names = ", ".join(repr(name) for name in layout.names)
            raise BadData(f"{source}: no value {key!r}; there are {names}", "--json-keys names the value of text")
        if data_format != "str":
            raise BadData(
                f"{source}: the items hold {data_format}, expected str", "lt-preprocess import takes token ids as they are"
            )


def damaged(source: str, offset: int, reason: str) -> BadData:
    return BadData(f"{source}, byte {offset}: damaged litdata chunk: {reason}", _COPY_AGAIN)


def listed_files(index: dict[str, Any]) -> list[list[tuple[str, int | None]]] | None:
    """Return the files that an index.json of this format lists, with their sizes; None if it is no such index.

    The sizes of compressed files are not there.
    """
    listed = index.get("chunks")
    if not isinstance(listed, list) or not isinstance(index.get("config"), dict) or "data_format" not in index["config"]:
        return None
    is_compressed = bool(index["config"].get("compression"))
    return [[(str(chunk["filename"]), None if is_compressed else chunk.get("chunk_bytes"))] for chunk in listed]
