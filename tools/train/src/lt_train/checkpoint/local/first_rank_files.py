"""What the first rank alone writes of a checkpoint while megatron-core has the others wait for it in a collective.

An error of its disk would leave them there: it is kept instead, until all ranks can be told.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from megatron.core.dist_checkpointing import serialization
from megatron.core.dist_checkpointing.strategies import common
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync


@contextlib.contextmanager
def failures_kept() -> Iterator[list[BaseException]]:
    """Within, what goes wrong with these files is put into the list, and whoever writes them goes on."""
    kept: list[BaseException] = []
    # Until megatron-core 0.16 there is a file for what is no tensor.
    of_common = getattr(common, "TorchCommonSaveStrategy", None)
    finish, save_config = FileSystemWriterAsync.finish, serialization.save_config
    save_common = of_common.save_common if of_common else None
    FileSystemWriterAsync.finish = _keeping(finish, kept)
    serialization.save_config = _keeping(save_config, kept)
    if of_common:
        of_common.save_common = _keeping(save_common, kept)
    try:
        yield kept
    finally:
        FileSystemWriterAsync.finish, serialization.save_config = finish, save_config
        if of_common:
            of_common.save_common = save_common


def _keeping(write: Any, kept: list[BaseException]) -> Callable[..., None]:
    def write_or_keep(*arguments: Any, **options: Any) -> None:
        try:
            write(*arguments, **options)
        # torch's archives say of a full disk that a position is wrong.
        except (OSError, RuntimeError) as error:
            kept.append(error)

    return write_or_keep
