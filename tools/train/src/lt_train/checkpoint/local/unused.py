"""Invalidate the local copies of a run that resumes without --save-local, because the copies will lack its next steps.

A warning is printed at the start. The copies are deleted when the state is in memory, so a user who forgot the option can still
stop the run before.
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
    """The local copies to invalidate. All ranks construct it together and call its method together."""

    def __init__(self, settings: Checkpointing):
        self._settings = settings
        self._identity = Identity.read(settings) if settings.save else None
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
    """Return the iteration of the checkpoint in SAVE that the run resumes; 0 if it resumes none."""
    continues_run = settings.start is not None and settings.continues
    return (checkpoint_layout.iteration_of(Path(str(settings.start))) or 0) if continues_run else 0


def delete_copies(identity: Identity, place: str | None, but: str | None = None) -> None:
    """Delete the run's copies in `place` on this node, except directories named `but`. Ignore errors of the disk."""
    with contextlib.suppress(OSError):
        for path in Path(place).glob(f"{identity.prefix}*") if place else ():
            if path.name != but:
                shutil.rmtree(path, ignore_errors=True)
