"""The local copies of a run that goes on without --save-local: what it trains from here on is not in them, none may count again.

That is said at the start and done when the state is in memory: whoever has forgotten the option can still end the run in between.
"""

import contextlib
import shutil
from pathlib import Path

import torch

from lt_shared.console import warn
from lt_shared.contracts import checkpoint_layout
from lt_train.checkpoint.local.identity import Identity, record_path
from lt_train.config.settings.checkpointing import Checkpointing


class UnusedCopies:
    """All ranks make it together, and call its method together."""

    def __init__(self, settings: Checkpointing):
        self._settings = settings
        self._identity = Identity.recorded(settings) if settings.save else None
        self._is_first = torch.distributed.get_rank() == 0
        newest, start_iteration = self._identity.iteration if self._identity else None, resumed_iteration(settings)
        if self._is_first and newest is not None and newest > start_iteration:
            warn(
                f"{record_path(settings)}: the local copies of iteration {newest} are not used without --save-local, the run"
                f" continues from iteration {start_iteration}; they are deleted when its training begins"
            )

    def delete(self) -> None:
        if self._identity is None:
            return
        if self._is_first:
            self._identity.delete(self._settings)
        delete_copies(self._identity, self._identity.place)


def resumed_iteration(settings: Checkpointing) -> int:
    """That of the checkpoint in SAVE which the run starts from; 0 when it starts from none of its own."""
    continues_run = settings.start is not None and settings.continues
    return (checkpoint_layout.iteration_of(Path(str(settings.start))) or 0) if continues_run else 0


def delete_copies(identity: Identity, place: str | None, but: str | None = None) -> None:
    """Delete what this node has of the run's copies in `place`, but for directories of that name, as far as the disk lets it."""
    with contextlib.suppress(OSError):
        for path in Path(place).glob(f"{identity.prefix}*") if place else ():
            if path.name != but:
                shutil.rmtree(path, ignore_errors=True)
