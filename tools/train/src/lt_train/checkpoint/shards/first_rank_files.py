"""What the first rank alone writes of a checkpoint while megatron-core has the others wait for it in a collective.

An error of its disk would leave them there: it is kept instead, until all ranks can be told.
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from lt_train.checkpoint import shard_checksums
from lt_train.megatron import dist_checkpointing_serialization, filesystem_async, strategies_common


@contextlib.contextmanager
def collect_failures() -> Iterator[list[BaseException]]:
    """Within, what goes wrong with these files is put into the list, and whoever writes them goes on."""
    errors: list[BaseException] = []
    # What is put back afterwards must be lt-train's, not megatron-core's own.
    shard_checksums.install()
    keep = partial(_write_or_keep, errors)
    with (
        filesystem_async.finishing_by(keep),
        dist_checkpointing_serialization.saving_config_by(keep),
        strategies_common.saving_common_by(keep),
    ):
        yield errors


def _write_or_keep(errors: list[BaseException], write: Any, *arguments: Any) -> None:
    try:
        write(*arguments)
    # torch's archives say of a full disk that a position is wrong.
    except (OSError, RuntimeError) as error:
        errors.append(error)
