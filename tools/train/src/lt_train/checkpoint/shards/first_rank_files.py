"""Collect errors of files that only the first rank writes, while megatron-core lets the other ranks wait in a collective.

If the error were raised, the other ranks would wait for ever. It is kept until all ranks can receive it.
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from lt_train.checkpoint import shard_checksums
from lt_train.megatron import dist_checkpointing_serialization, filesystem_async, strategies_common


@contextlib.contextmanager
def collect_failures() -> Iterator[list[BaseException]]:
    """Within the context, append errors of the first rank's files to the yielded list instead of raising them."""
    errors: list[BaseException] = []
    # Install first: the functions that are restored afterwards must be lt-train's, not megatron-core's.
    shard_checksums.install()
    keep = partial(_write_or_keep, errors)
    with (
        filesystem_async.wrap_finish(keep),
        dist_checkpointing_serialization.save_config_by(keep),
        strategies_common.save_common_by(keep),
    ):
        yield errors


def _write_or_keep(errors: list[BaseException], write: Any, *arguments: Any) -> None:
    try:
        write(*arguments)
    # torch's archive writer reports a full disk as a wrong position, in a RuntimeError.
    except (OSError, RuntimeError) as error:
        errors.append(error)
