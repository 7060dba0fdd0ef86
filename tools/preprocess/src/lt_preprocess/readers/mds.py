"""Shards of mosaicml-streaming (MDS): a sample is a document, a column of strings is a key.

A shard begins with the number of samples and where each begins and ends (uint32). A description of the columns in
JSON follows, and then the samples: the sizes of columns that vary, and the values.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from lt_preprocess.readers import text_keys
from lt_preprocess.readers.byte_stream import ByteStream
from lt_preprocess.readers.records import FieldsRecord, JsonRecord, Record
from lt_shared.console import BadData
from lt_shared.data.document_origins import key_paths

SUFFIX = ".mds"
_LONGEST_DESCRIPTION_BYTES = 1 << 20
_COPY_AGAIN = "copy the shard again"


class Column(NamedTuple):
    """`size_bytes` is None if every sample states its size."""

    name: str
    encoding: str
    size_bytes: int | None


class Shard(NamedTuple):
    """`ends` int64 [samples + 1]: the offsets of the samples in the file, and the end of the last."""

    columns: list[Column]
    ends: npt.NDArray[np.int64]


def is_shard(start: bytes) -> bool:
    """Whether a file begins like a shard: the first sample begins after the offsets and a description of plausible size."""
    if len(start) < 16:
        return False
    samples, first, second = struct.unpack_from("<3I", start)
    description_bytes = first - 4 * (samples + 2)
    return bool(samples > 0 and 2 <= description_bytes <= _LONGEST_DESCRIPTION_BYTES and first <= second)


def open_shard(source: str, content: ByteStream) -> Shard:
    """Read up to the first sample. Raises BadData if it is no shard, or damaged."""
    (samples,) = struct.unpack("<I", content.read(4))
    stored_ends = content.read(4 * (samples + 1))
    if len(stored_ends) < 4 * (samples + 1):
        raise _damaged(source, content.offset, "cut off")
    ends = np.frombuffer(stored_ends, np.uint32).astype(np.int64)
    description = content.read(int(ends[0]) - content.offset)
    try:
        record = orjson.loads(description)
        names, encodings, sizes = (record[f"column_{name}"] for name in ("names", "encodings", "sizes"))
        described = zip(names, encodings, sizes, strict=True)
        columns = [Column(str(name), str(encoding), size or None) for name, encoding, size in described]
        is_sound = record["format"] == "mds" and all(size is None or isinstance(size, int) for _, _, size in columns)
    except (ValueError, KeyError, TypeError):
        is_sound = False
    if not is_sound or bool(np.any(np.diff(ends) < 0)):
        raise _damaged(source, content.offset, "its description of columns or samples is malformed")
    return Shard(columns, ends)


def samples(source: str, content: ByteStream, shard: Shard, names: Sequence[str]) -> Iterator[dict[str, bytes]]:
    """Yield the values of the columns `names` of each sample, as they are stored. Raises BadData for a damaged shard."""
    for number, size in enumerate(np.diff(shard.ends).tolist(), 1):
        data = content.read(size)
        values: dict[str, bytes] = {}
        sized = [column for column in shard.columns if column.size_bytes is None]
        at = 4 * len(sized)
        if len(data) < max(size, at):
            raise _damaged(source, content.offset, f"sample {number} is cut off")
        stated = iter(struct.unpack_from(f"<{len(sized)}I", data))
        for column in shard.columns:
            end = at + (next(stated) if column.size_bytes is None else column.size_bytes)
            if column.name in names:
                values[column.name] = data[at:end]
            at = end
        if at != size:
            raise _damaged(source, content.offset, f"sample {number} has {size} bytes, its columns {at}")
        yield values
    if content.read(1):
        raise _damaged(source, content.offset, "more bytes follow the last sample")


def records(source: str, content: ByteStream, json_keys: Sequence[str]) -> Iterator[Record]:
    """Yield the samples of a shard. Raises BadData for a column that is not there or holds no text, and for damage."""
    shard = open_shard(source, content)
    encodings = {column.name: column.encoding for column in shard.columns}
    names = []
    for key in json_keys:
        name = _column(text_keys.name_of(key), encodings)
        if name not in encodings:
            if text_keys.is_optional(key):
                continue
            raise BadData(
                f"{source}: no column {name!r}; there are {', '.join(encodings)}", "--json-keys names the column of text"
            )
        if encodings[name] not in ("str", "json"):
            raise BadData(
                f"{source}: column {name!r} is of type {encodings[name]}, expected str or json",
                "lt-preprocess import takes token ids as they are",
            )
        names.append(name)
    has_json = any(encodings[key] == "json" for key in names)
    for values in samples(source, content, shard, names):
        yield JsonRecord(_object(values, encodings)) if has_json else FieldsRecord(values)


def _column(key: str, encodings: Mapping[str, str]) -> str:
    """Return the column of a key: its own, or the column of objects that its path begins with."""
    first, *below = key_paths.path_of(key)
    return first if key not in encodings and below and encodings.get(first) == "json" else key


def _object(values: dict[str, bytes], encodings: dict[str, str]) -> bytes:
    """Return one JSON object of all values. A string that is not UTF-8 makes a line that is not, and so a bad row."""
    members = []
    for name, value in values.items():
        members.append(orjson.dumps(name) + b":" + (value if encodings[name] == "json" else _quoted(value)))
    return b"{" + b",".join(members) + b"}"


def _quoted(value: bytes) -> bytes:
    try:
        return orjson.dumps(value.decode())
    except UnicodeDecodeError:
        return b'"' + value.replace(b'"', b"'") + b'"'


def _damaged(source: str, offset: int, reason: str) -> BadData:
    return BadData(f"{source}, byte {offset}: damaged MDS shard: {reason}", _COPY_AGAIN)


def listed_files(index: dict[str, Any]) -> list[list[tuple[str, int | None]]] | None:
    """Return the files that an index.json of this format lists, with their sizes; None if it is no such index.

    A shard may be there under two names: compressed and not.
    """
    shards = index.get("shards")
    if not isinstance(shards, list) or not all(isinstance(shard, dict) and "raw_data" in shard for shard in shards):
        return None
    names = ("raw_data", "zip_data")
    return [[(str(shard[name]["basename"]), shard[name].get("bytes")) for name in names if shard.get(name)] for shard in shards]
