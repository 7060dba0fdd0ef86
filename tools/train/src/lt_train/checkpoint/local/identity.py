"""Which local copies are a run's own: SAVE/local-copies.json names them, since a node's disk may have those of many runs.

`run` is drawn when the run begins, `generation` counts the starts that were not from its copies: those that there were do not
count any more from then on. A node that was away and comes back with them would otherwise bring back steps that were done again.
Without the file no copies count: whoever deletes it starts from SAVE.
"""

import dataclasses
import json
import os
import re
import secrets
from typing import Self

import torch

from lt_shared import storage
from lt_train.config.settings.checkpointing import Checkpointing
from lt_train.runtime import agreement

FILE = "local-copies.json"


@dataclasses.dataclass(frozen=True)
class Identity:
    """`iteration` is that of the newest copies that were complete, `place` the directory of the first node for them."""

    run: str
    save: str
    generation: int = 0
    iteration: int | None = None
    place: str | None = None

    @property
    def prefix(self) -> str:
        """Of the names of the run's directories."""
        return f"lt-{self.run}."

    @property
    def directory(self) -> str:
        return f"{self.prefix}{self.generation}"

    @classmethod
    def agreed(cls, settings: Checkpointing) -> Self:
        """That of the run, as its first rank reads or draws it. All ranks call it."""
        return cls.recorded(settings) or cls(**agreement.from_first_rank({"run": secrets.token_hex(6), "save": _save(settings)}))

    @classmethod
    def recorded(cls, settings: Checkpointing) -> Self | None:
        """That of the run, as its first rank reads it; None when SAVE names none. All ranks call it."""
        found = cls._read(settings) if torch.distributed.get_rank() == 0 else None
        told = agreement.from_first_rank(found and dataclasses.asdict(found))
        return None if told is None else cls(**told)

    @classmethod
    def _read(cls, settings: Checkpointing) -> Self | None:
        path = record_path(settings)
        try:
            read = json.loads(storage.read_bytes(path)) if storage.exists(path) else {}
            found = cls(**{name: value for name, value in read.items() if name != "v"}) if read else None
        except (ValueError, TypeError, AttributeError):
            found = None
        # A run that was copied, or moved, has no copies of its own yet.
        return found if found is not None and found._is_sound and found.save == _save(settings) else None

    @property
    def _is_sound(self) -> bool:
        """Whether the file says what this class writes: directories are deleted by it."""
        numbers = isinstance(self.generation, int) and isinstance(self.iteration, int | None)
        return numbers and isinstance(self.place, str | None) and bool(re.fullmatch("[0-9a-f]{12}", str(self.run)))

    def write(self, settings: Checkpointing) -> None:
        """By the first rank."""
        storage.write_bytes(record_path(settings), (json.dumps({"v": 1, **dataclasses.asdict(self)}) + "\n").encode())

    def delete(self, settings: Checkpointing) -> None:
        """By the first rank: the run has no copies any more."""
        storage.remove(record_path(settings))


def record_path(settings: Checkpointing) -> str:
    return os.path.join(str(settings.save), FILE)


def _save(settings: Checkpointing) -> str:
    return str(settings.save) if settings.is_remote else os.path.realpath(str(settings.save))
