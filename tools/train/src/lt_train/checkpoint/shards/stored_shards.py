"""Read the shards of a checkpoint on a store by ranges into memory. Each rank reads only the objects that it needs.

A node has the small files of such a checkpoint. Beside them, `shards.remote` has the URL, the sizes and the versions of the
shards:

    {"v": 1, "url": "s3://bucket/run1/iter_0000004", "shards": {"__0_0.distcp": {"size_bytes": 123, "version": "\\"d41d...\\""}}}

A request takes some tens of milliseconds before its first byte. So several requests are under way at a time, also for objects
that torch's reader needs later, and consecutive small objects share a request. An object is a rank's part of a tensor. It has a
single checksum, so a rank that needs some rows reads the whole object.
"""

import dataclasses
import io
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Self, TypeAlias

import numpy as np

from lt_shared.console import BadData, IoFailure
from lt_shared.files import object_versions, storage, strict_json
from lt_shared.files.checksums import DAMAGED

NAME = "shards.remote"
SUFFIX = ".distcp"
VERSION = 1
# A rank takes memory for AHEAD_BYTES, for CONNECTIONS requests of REQUEST_BYTES, and for the largest object: 384 MiB and the
# object.
CONNECTIONS, REQUEST_BYTES, AHEAD_BYTES = 16, 8 << 20, 256 << 20


class Place(NamedTuple):
    """The position of an object in a shard."""

    shard: str
    offset: int
    size_bytes: int

    @property
    def end(self) -> int:
        return self.offset + self.size_bytes


# Returns the bytes of an object in a buffer that no other object shares.
Take: TypeAlias = Callable[[Place], memoryview]


@dataclasses.dataclass(frozen=True)
class StoredShard:
    size_bytes: int
    version: str


@dataclasses.dataclass(frozen=True)
class StoredShards:
    """The shards below `url`, by name."""

    url: str
    shards: dict[str, StoredShard]

    @classmethod
    def load(cls, directory: Path) -> Self | None:
        """Read `shards.remote` in `directory`. Return None if there is none: the shards are in the directory. Raise BadData."""
        path = directory / NAME
        if not path.exists():
            return None
        try:
            record = strict_json.loads(storage.read_record(path), has_paths=True)
            if record["v"] != VERSION:
                raise ValueError(f"version {record['v']}, known is {VERSION}")
            shards = {str(name): StoredShard(**fields) for name, fields in record["shards"].items()}
            return cls(str(record["url"]), shards)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"{path}: does not say where the shards are: {error}"
            raise BadData(reason, "delete its directory: it is made again") from None

    def write(self, directory: Path) -> None:
        storage.write_bytes(directory / NAME, json.dumps({"v": VERSION, **dataclasses.asdict(self)}).encode())

    def read(self, shard: str, begin: int, end: int) -> bytes:
        """Read the bytes of a shard from `begin` to before `end`.

        Raises BadData if the shard ends earlier or was replaced, NoInput if it was deleted, IoFailure, and Unavailable.
        """
        self.check_end(shard, end)
        url = f"{self.url}/{shard}"
        content = object_versions.read_range(url, begin, end, self.shards[shard].version) if begin < end else b""
        if len(content) != end - begin:
            raise IoFailure(f"{url}: {len(content)} bytes from byte {begin} on, {end - begin} were expected")
        return content

    def check_end(self, shard: str, end: int) -> None:
        """Raise BadData if a shard has fewer bytes than `end`, or does not exist."""
        if shard not in self.shards:
            raise BadData(f"{self.url}/{shard}: missing", DAMAGED)
        size = self.shards[shard].size_bytes
        if end > size:
            raise BadData(f"{self.url}/{shard}: ends at {size} bytes, {end} are needed", DAMAGED)


class OpenShard(io.RawIOBase):
    """A shard below `url` as an open file for torch's reader: its name, and the objects from `take`."""

    def __init__(self, shard: str, url: str, take: Take):
        self.shard, self.name, self._take = shard, f"{url}/{shard}", take

    def content(self, offset: int, size_bytes: int) -> memoryview:
        return self._take(Place(self.shard, offset, size_bytes))


@dataclasses.dataclass
class _Span:
    """Consecutive objects of a shard that are read into one buffer."""

    places: list[Place]
    buffer: memoryview
    requests: list[Future[None]]


class Objects:
    """Read objects from the store ahead, in order. Leaving the context cancels the pending requests."""

    def __init__(self, shards: StoredShards, places: Sequence[Place]):
        self.shards = shards
        self._remaining = deque(_spans(places))
        self._ahead: deque[_Span] = deque()
        self._ahead_bytes = 0
        self._pool = ThreadPoolExecutor(CONNECTIONS, "store")

    def __enter__(self) -> Self:
        try:
            self._fill()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def take(self, place: Place) -> memoryview:
        """Return the bytes of the object at `place` in a separate buffer. Earlier objects can no longer be taken."""
        self._fill()
        while place not in self._ahead[0].places:
            self._drop()
            self._fill()
        span = self._ahead[0]
        for request in span.requests:
            request.result()
        first = span.places[0].offset
        content = span.buffer[place.offset - first : place.end - first]
        if len(span.places) > 1:
            # An archive aligns its tensors relative to its first byte, so copy the object to an aligned buffer.
            content = memoryview(bytearray(content))
        if place == span.places[-1]:
            self._drop()
            self._fill()
        return content

    def _drop(self) -> None:
        self._ahead_bytes -= len(self._ahead.popleft().buffer)

    def _fill(self) -> None:
        while self._remaining and (not self._ahead or self._ahead_bytes + _size(self._remaining[0]) <= AHEAD_BYTES):
            places = self._remaining.popleft()
            self.shards.check_end(places[0].shard, places[-1].end)
            buffer = np.empty(_size(places), np.uint8).data
            begin = places[0].offset
            requests = [
                self._pool.submit(self._read, places[0].shard, begin + start, buffer[start : start + REQUEST_BYTES])
                for start in range(0, len(buffer), REQUEST_BYTES)
            ]
            self._ahead.append(_Span(places, buffer, requests))
            self._ahead_bytes += len(buffer)

    def _read(self, shard: str, begin: int, target: memoryview) -> None:
        target[:] = self.shards.read(shard, begin, begin + len(target))


def _size(places: Sequence[Place]) -> int:
    return places[-1].end - places[0].offset


def _spans(places: Sequence[Place]) -> Iterator[list[Place]]:
    """Yield the objects in groups that one request reads."""
    span: list[Place] = []
    for place in dict.fromkeys(places):
        follows = span and (place.shard, place.offset) == (span[-1].shard, span[-1].end)
        if span and not (follows and place.end - span[0].offset <= REQUEST_BYTES):
            yield span
            span = []
        span.append(place)
    if span:
        yield span
