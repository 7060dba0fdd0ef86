"""A dataset's `.bin` as an object at a URL, read by ranges, while its other files were copied from the store.

`PREFIX.bin.remote` beside the `.idx` says which object, of which version and size:

    {"v": 1, "url": "s3://bucket/web.bin", "version": "\\"d41d...\\"", "size_bytes": 123}

A request takes some tens of milliseconds at any offset, so a caller that reads much keeps several requests in flight.
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from lt_shared.console import BadData, IoFailure
from lt_shared.files import object_versions, storage, strict_json

VERSION = 1


def record_path(prefix: str) -> str:
    return f"{prefix}.bin.remote"


@dataclasses.dataclass(frozen=True)
class RemoteBin:
    """An object on a store, of the `version` that its `storage.fingerprint` had."""

    url: str
    version: str
    size_bytes: int

    @classmethod
    def of(cls, prefix: str) -> Self | None:
        """Return the remote `.bin` of the dataset at a local prefix; None if the `.bin` is local, or if no record names one.

        Raises BadData for a malformed record.
        """
        path = record_path(prefix)
        if os.path.exists(f"{prefix}.bin") or not os.path.exists(path):
            return None
        try:
            record = strict_json.loads(storage.read_record(path), has_paths=True)
            if record["v"] != VERSION:
                raise ValueError(f"version {record['v']}, known is {VERSION}")
            return cls(str(record["url"]), str(record["version"]), int(record["size_bytes"]))
        except (ValueError, KeyError, TypeError) as error:
            raise BadData(
                f"{path}: does not say where the tokens are: {error}", "delete its directory: it is copied again"
            ) from None

    @property
    def record(self) -> dict[str, Any]:
        return {"v": VERSION, **dataclasses.asdict(self)}

    def read(self, begin: int, end: int) -> bytes:
        """The bytes from `begin` to before `end`. Raises as `object_versions.read_range`, and IoFailure for fewer."""
        if begin == end:
            return b""
        content = object_versions.read_range(self.url, begin, end, self.version)
        if len(content) != end - begin:
            raise IoFailure(f"{self.url}: {len(content)} bytes from byte {begin} on, {end - begin} were expected")
        return content

    def read_into(self, pieces: Sequence[tuple[memoryview, int]]) -> None:
        """Implement `samples.TokenFile`, with one request after the other."""
        for target, offset in pieces:
            target[:] = self.read(offset, offset + len(target))


class RemoteTokens:
    """The tokens of a remote `.bin` as an array that reads on access: `tokens[i]`, `tokens[i:j]`, `len(tokens)`."""

    def __init__(self, remote: RemoteBin, dtype: np.dtype[Any]):
        self._remote = remote
        self.dtype = dtype

    def __len__(self) -> int:
        return self._remote.size_bytes // self.dtype.itemsize

    def __getitem__(self, chosen: int | slice) -> Any:
        if isinstance(chosen, slice):
            begin, end, step = chosen.indices(len(self))
            return self._read(begin, max(begin, end))[::step]
        number = range(len(self))[chosen]
        return self._read(number, number + 1)[0]

    def _read(self, begin: int, end: int) -> npt.NDArray[Any]:
        width = self.dtype.itemsize
        return np.frombuffer(self._remote.read(begin * width, end * width), self.dtype)
