"""`megatron.core.dist_checkpointing.strategies.filesystem_async`: the writer of a rank's shards.

megatron-core copies every tensor on a CPU that is a part of a larger one, has a process or a thread for each file, whose number
differs between its versions, and writes through the page cache. Instead:

- `lt_train.checkpoint.shards.shard_files` writes large blocks past the page cache, with the CRC-32 of each object.
- `lt_train.checkpoint.shard_checksums` collects the checksums on rank 0.
- `lt_train.checkpoint.shards.first_rank_files` keeps an error of rank 0's disk until all ranks can be told. They would wait for
  rank 0 otherwise.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync

from lt_train.megatron.upstream import MEGATRON_CORE, Upstream, replaced

UPSTREAM = Upstream(
    "megatron.core.dist_checkpointing.strategies.filesystem_async",
    MEGATRON_CORE,
    versions=("0.16.1", "0.19.2"),
    signatures={
        "FileSystemWriterAsync.prepare_write_data": "(self, plan, planner)",
        "FileSystemWriterAsync.get_save_function_and_args": "(self)",
        "FileSystemWriterAsync.finish": "(self, metadata, results)",
    },
)


def write_by(
    prepare: Callable[[Any, Any, Any], None], function_and_arguments: Callable[[Any], tuple[Any, Any, list[Any]]]
) -> None:
    """Let `prepare` distribute a plan to files, and `function_and_arguments` return what writes them, for each writer."""

    def prepare_write_data(self: Any, plan: Any, planner: Any, *unknown: Any, **unknown_named: Any) -> None:
        UPSTREAM.refuse_unknown("FileSystemWriterAsync.prepare_write_data", unknown, unknown_named)
        prepare(self, plan, planner)

    def get_save_function_and_args(self: Any, *unknown: Any, **unknown_named: Any) -> tuple[Any, Any, list[Any]]:
        UPSTREAM.refuse_unknown("FileSystemWriterAsync.get_save_function_and_args", unknown, unknown_named)
        return function_and_arguments(self)

    FileSystemWriterAsync.prepare_write_data = prepare_write_data
    FileSystemWriterAsync.get_save_function_and_args = get_save_function_and_args


def finish_by(finish: Callable[[Any, Any, Any], None]) -> None:
    """Call `finish` with the writer, the metadata and all ranks' results when rank 0 completes a checkpoint."""
    FileSystemWriterAsync.finish = _finish(finish)


@contextlib.contextmanager
def finishing_by(finish: Callable[..., None]) -> Iterator[None]:
    """Within, `finish` is called with the method that was there before, and with that method's arguments."""
    before = FileSystemWriterAsync.finish

    def finish_writer(*arguments: Any) -> None:
        finish(before, *arguments)

    with replaced(FileSystemWriterAsync, "finish", _finish(finish_writer)):
        yield


def _finish(finish: Callable[[Any, Any, Any], None]) -> Callable[..., None]:
    def checked(self: Any, metadata: Any, results: Any, *unknown: Any, **unknown_named: Any) -> None:
        UPSTREAM.refuse_unknown("FileSystemWriterAsync.finish", unknown, unknown_named)
        finish(self, metadata, results)

    return checked
