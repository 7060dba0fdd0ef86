"""Which local copies are a run's own: SAVE/local-copies.json names them, since a node's disk may have those of many runs.

`run` is drawn when the run begins, `generation` counts how often it has gone back behind its newest copies, which do not count
any more from then on: a node that was away and comes back with them would otherwise bring back steps that were done again.
Without the file no copies count: whoever deletes it starts from SAVE.
"""

import dataclasses
import json
import os
import secrets
from typing import Self

import torch

from lt_shared import storage
from lt_train.config.settings.checkpointing import Checkpointing
from lt_train.runtime import agreement

FILE = "local-copies.json"


@dataclasses.dataclass(frozen=True)
class Identity:
    """`iteration` is that of the newest copies that were complete."""

    run: str
    save: str
    generation: int = 1
    iteration: int | None = None

    @property
    def prefix(self) -> str:
        """Of the names of the run's directories."""
        return f"lt-{self.run}."

    @property
    def directory(self) -> str:
        return f"{self.prefix}{self.generation}"

    @classmethod
    def agreed(cls, settings: Checkpointing) -> Self:
        """That of the run, as its first rank reads or makes it. All ranks call it."""
        found: dict[str, int | str | None] | None = None
        if torch.distributed.get_rank() == 0:
            found = dataclasses.asdict(cls._of(settings))
        return cls(**agreement.from_first_rank(found))

    @classmethod
    def _of(cls, settings: Checkpointing) -> Self:
        save = str(settings.save) if settings.is_remote else os.path.realpath(str(settings.save))
        path = _path(settings)
        try:
            read = json.loads(storage.read_bytes(path)) if storage.exists(path) else {}
            found = cls(**{name: value for name, value in read.items() if name != "v"}) if read else None
        except (ValueError, TypeError, AttributeError):
            found = None
        if found is not None and found.save == save:
            return found
        # A run that was copied, or moved, has no copies of its own yet.
        made = cls(secrets.token_hex(6), save)
        made.write(settings)
        return made

    def write(self, settings: Checkpointing) -> None:
        """By the first rank."""
        storage.write_bytes(_path(settings), (json.dumps({"v": 1, **dataclasses.asdict(self)}) + "\n").encode())

    def delete(self, settings: Checkpointing) -> None:
        """By the first rank: the run has no copies any more."""
        storage.remove(_path(settings))


def _path(settings: Checkpointing) -> str:
    return os.path.join(str(settings.save), FILE)
