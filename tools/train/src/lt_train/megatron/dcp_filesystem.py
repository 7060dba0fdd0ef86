"""`torch.distributed.checkpoint.filesystem`: read checkpoints without torch's unpickler, in the order of the files.

torch's reader unpickles `.metadata` and every object, which calls any function that a pickle names. It accepts damaged bytes, and
reads one piece at a time in the order of the state dictionary. `lt_train.checkpoint.object_reader` replaces it, and
`lt_train.checkpoint.local.copies` first fetches a local checkpoint's files from other nodes.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import IO, Any

from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.filesystem import FileSystemReader

from lt_train.megatron.upstream import TORCH, Upstream, replace_within

UPSTREAM = Upstream(
    "torch.distributed.checkpoint.filesystem",
    TORCH,
    versions=("2.11.0", "2.13.0"),
    signatures={
        "FileSystemReader._slice_file": "(self, file, sinfo)",
        "FileSystemReader.read_data": "(self, plan, planner)",
        "FileSystem.create_stream": "(self, path, mode)",
    },
    values=("pickle",),
)


class _Pickle:
    """The module `pickle` for a reader that loads `.metadata` with it."""

    def __init__(self, load: Callable[[IO[bytes]], Any]):
        self._load = load

    def load(self, file: IO[bytes], *unknown: Any, **unknown_named: Any) -> Any:
        UPSTREAM.refuse_unknown("pickle.load", unknown, unknown_named)
        return self._load(file)


@contextlib.contextmanager
def read_by(
    load_index: Callable[[IO[bytes]], Any],
    read_slice: Callable[[FileSystemReader, IO[bytes], Any], Any],
    read_data: Callable[[FileSystemReader, Any, Any], Any],
) -> Iterator[None]:
    """Within, `FileSystemReader` loads `.metadata` by `load_index`, an object by `read_slice`, and a plan by `read_data`."""

    def _slice_file(self: FileSystemReader, file: IO[bytes], sinfo: Any, *unknown: Any, **unknown_named: Any) -> Any:
        UPSTREAM.refuse_unknown("FileSystemReader._slice_file", unknown, unknown_named)
        return read_slice(self, file, sinfo)

    with (
        replace_within(filesystem, "pickle", _Pickle(load_index)),
        replace_within(FileSystemReader, "_slice_file", _slice_file),
        read_data_by(read_data),
    ):
        yield


@contextlib.contextmanager
def read_data_by(read: Callable[[FileSystemReader, Any, Any], Any]) -> Iterator[None]:
    """Within the context, `FileSystemReader` reads the items of a plan by `read(reader, plan, planner)`."""

    def read_data(self: FileSystemReader, plan: Any, planner: Any, *unknown: Any, **unknown_named: Any) -> Any:
        UPSTREAM.refuse_unknown("FileSystemReader.read_data", unknown, unknown_named)
        return read(self, plan, planner)

    with replace_within(FileSystemReader, "read_data", read_data):
        yield


@contextlib.contextmanager
def open_by(file_system: Any, open_stream: Callable[[Any, str], Any]) -> Iterator[None]:
    """Within the context, `file_system` of a reader opens files by `open_stream(path, mode)`."""

    def create_stream(path: Any, mode: str, *unknown: Any, **unknown_named: Any) -> Any:
        UPSTREAM.refuse_unknown("FileSystem.create_stream", unknown, unknown_named)
        return open_stream(path, mode)

    with replace_within(file_system, "create_stream", create_stream):
        yield
