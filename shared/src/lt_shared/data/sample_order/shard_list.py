"""Read the shards of a stream from a manifest that may still grow: lt-preprocess --stream prints a line when a shard is durable.

A restarted producer prints the lines of finished shards again, into a new file or at the end of the old one. A repeated line is
therefore ignored. A line with different values for the same part belongs to a different stream and is an error. The whole list is
read each time: a trillion tokens are 4,000 lines.
"""

import dataclasses
import os
from collections.abc import Sequence

from lt_shared.console import BadData
from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset
from lt_shared.files import storage

# A node may see a manifest line before the shard's files. NFS caches directory attributes for a minute at most.
LATEST_SECONDS = 180.0


@dataclasses.dataclass(frozen=True)
class ShardList:
    """The shards in stream order. `is_finished` is true after the end line: no shard will follow."""

    shards: tuple[Dataset, ...] = ()
    is_finished: bool = False

    @property
    def name(self) -> str | None:
        return self.shards[0].stream if self.shards else None


def begins(line: str) -> bool:
    """Whether `line`, the first line of a file, is the manifest line of a stream's shard."""
    if not line.strip().startswith("{"):
        return False
    try:
        record = manifest.record_in(line, "", 1)
    except BadData:
        return False
    return record["kind"] == "dataset" and record.get("stream") is not None


def parse(text: str, source: str) -> ShardList:
    """Parse the complete lines of `text`; ignore a last line without a newline. Errors name `source`.

    Raises BadData for a gap, for a different stream, and for different values of a shard that is listed already.
    """
    shards: list[Dataset] = []
    is_finished = False
    for number, line in enumerate(text.split("\n")[:-1], 1):
        if not line.strip():
            continue
        record = manifest.record_in(line, source, number)
        if record["kind"] == "end":
            if record.get("count") != len(shards):
                raise BadData(f"{source}, line {number}: {len(shards)} shards, but the end line says {record.get('count')}")
            is_finished = True
            continue
        shard = manifest.entry_in(record, source, number)
        if not isinstance(shard, Dataset) or shard.part is None or shard.tokens is None:
            raise BadData(f"{source}, line {number}: not a shard of a stream", "a stream is given as a source of its own")
        check_follows(shards, shard, f"{source}, line {number}")
        if shard.part == len(shards):
            shards.append(shard)
            is_finished = False
    return ShardList(tuple(shards), is_finished)


def is_visible(shard: Dataset) -> bool:
    """Whether this machine sees the files of `shard` in full size. Objects in remote storage are visible once listed."""
    import numpy as np

    if storage.is_remote(shard.prefix):
        return True
    try:
        os.stat(f"{shard.prefix}.idx")
        size_bytes = os.stat(f"{shard.prefix}.bin").st_size
    except OSError:
        return False
    return shard.dtype is None or size_bytes >= (shard.tokens or 0) * np.dtype(shard.dtype).itemsize


def check_follows(shards: Sequence[Dataset], shard: Dataset, place: str) -> None:
    """Raise BadData unless `shard` is the next shard of the stream or repeats one of `shards`."""
    assert shard.part is not None
    if shards and shard.stream != shards[0].stream:
        raise BadData(
            f"{place}: a shard of {shard.stream}, the ones before are of {shards[0].stream}",
            "give each stream as a source of its own, with its weight before it",
        )
    if shard.part > len(shards):
        raise BadData(f"{place}: shard {shard.part} where {len(shards)} should follow: a line is missing")
    if shard.part < len(shards) and not is_same(shards[shard.part], shard):
        raise BadData(
            f"{place}: shard {shard.part} has {shard.tokens:,} tokens, and had {shards[shard.part].tokens or 0:,}:"
            " the stream was made anew from something else",
            "a run reads one stream: begin another one for the new data",
        )


def is_same(one: Dataset, other: Dataset) -> bool:
    """Whether two lines describe the same shard, ignoring its path."""
    return (one.documents, one.tokens, one.dtype, one.eod) == (other.documents, other.tokens, other.dtype, other.eod)
