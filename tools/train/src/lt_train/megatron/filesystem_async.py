"""`megatron.core.dist_checkpointing.strategies.filesystem_async`: the writer of a rank's shards.

megatron-core copies every CPU tensor that is a view of a larger tensor. It writes through the page cache, with a process or a
thread per file; the number of files differs between its versions. Instead:

- `lt_train.checkpoint.shards.shard_files` writes large blocks past the page cache, with a CRC-32 per object.
- `lt_train.checkpoint.shard_checksums` collects the checksums on rank 0.
- `lt_train.checkpoint.shards.first_rank_files` holds an error of rank 0's disk until rank 0 can tell all ranks. They would wait
  for rank 0 otherwise.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync

from lt_train.megatron.upstream import MEGATRON_CORE, Upstream, replace_within

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
    """For every writer, let `prepare` distribute a plan to files, and `function_and_arguments` return the call that writes."""

    def prepare_write_data(self: Any, plan: Any, planner: Any, *unknown: Any, **unknown_named: Any) -> None:
        UPSTREAM.refuse_unknown("FileSystemWriterAsync.prepare_write_data", unknown, unknown_named)
        prepare(self, plan, planner)

    def get_save_function_and_args(self: Any, *unknown: Any, **unknown_named: Any) -> tuple[Any, Any, list[Any]]:
        UPSTREAM.refuse_unknown("FileSystemWriterAsync.get_save_function_and_args", unknown, unknown_named)
        return function_and_arguments(self)

    FileSystemWriterAsync.prepare_write_data = prepare_write_data
    FileSystemWriterAsync.get_save_function_and_args = get_save_function_and_args


def finish_by(finish: Callable[[Any, Any, Any], None]) -> None:
    """When rank 0 completes a checkpoint, call `finish` with the writer, the metadata and all ranks' results."""
    FileSystemWriterAsync.finish = _finish(finish)


@contextlib.contextmanager
def wrap_finish(finish: Callable[..., None]) -> Iterator[None]:
    """Within the context, `finish` is called with the previous method and that method's arguments."""
    before = FileSystemWriterAsync.finish

    def finish_writer(*arguments: Any) -> None:
        finish(before, *arguments)

    with replace_within(FileSystemWriterAsync, "finish", _finish(finish_writer)):
        yield


def _finish(finish: Callable[[Any, Any, Any], None]) -> Callable[..., None]:
    def checked(self: Any, metadata: Any, results: Any, *unknown: Any, **unknown_named: Any) -> None:
        UPSTREAM.refuse_unknown("FileSystemWriterAsync.finish", unknown, unknown_named)
        finish(self, metadata, results)

    return checked
