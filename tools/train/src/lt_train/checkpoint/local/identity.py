"""SAVE/local-copies.json identifies the local copies of a run, because a node's disk may hold the copies of many runs.

`run` is drawn when the run begins. `generation` counts the starts that did not use the copies; copies of earlier generations no
longer count. Otherwise a node that was away would bring back steps that were trained again in the meantime. Without the file no
copies count: to start from SAVE, delete the file. A hidden second file still names the copies then, so that they are deleted.
"""

import dataclasses
import json
import os
import re
import secrets
from typing import Self

import torch

from lt_shared.console import warn
from lt_shared.files import storage
from lt_train.config.settings.checkpointing import Checkpointing
from lt_train.process import agreement

FILE = "local-copies.json"
HIDDEN = ".local-copies.json"


@dataclasses.dataclass(frozen=True)
class Identity:
    """`iteration` is the iteration of the newest complete copies, `place` the first node's directory for copies."""

    run: str
    save: str
    generation: int = 0
    iteration: int | None = None
    place: str | None = None

    @property
    def prefix(self) -> str:
        """The prefix of the run's directory names."""
        return f"lt-{self.run}."

    @property
    def directory(self) -> str:
        return f"{self.prefix}{self.generation}"

    @classmethod
    def read_or_create(cls, settings: Checkpointing) -> Self:
        """Read or draw the identity on the first rank, and send it to all ranks. All ranks call it."""
        return cls.read(settings) or cls(**agreement.from_first_rank({"run": secrets.token_hex(6), "save": _save(settings)}))

    @classmethod
    def read(cls, settings: Checkpointing) -> Self | None:
        """Read the identity on the first rank, and send it to all ranks; None if SAVE has no identity. All ranks call it."""
        identity = cls._read_files(settings) if torch.distributed.get_rank() == 0 else None
        fields = agreement.from_first_rank(identity and dataclasses.asdict(identity))
        return None if fields is None else cls(**fields)

    @classmethod
    def _read_files(cls, settings: Checkpointing) -> Self | None:
        path, hidden, save = record_path(settings), record_path(settings, HIDDEN), _save(settings)
        visible, hidden_copy = cls._parse(path), cls._parse(hidden)
        if visible is None and storage.exists(path):
            warn(f"{path}: is damaged, no local copies count")
        if visible is not None and visible.save != save and visible.iteration is not None:
            # The copies still belong to the original if the run was copied. If the run was moved, no other run uses them.
            warn(
                f"{path}: names the local copies of {visible.save}, which do not count in {save}; if that run was moved, move it"
                f" back to use them, or delete {os.path.join(visible.place or 'SAVE_LOCAL', visible.prefix)}*"
            )
        if visible is not None and visible.save == save:
            return visible
        if visible is None and hidden_copy is not None and hidden_copy.save == save:
            return dataclasses.replace(hidden_copy, generation=hidden_copy.generation + 1, iteration=None)
        return None

    @classmethod
    def _parse(cls, path: str) -> Self | None:
        try:
            fields = json.loads(storage.read_bytes(path)) if storage.exists(path) else {}
            identity = cls(**{name: value for name, value in fields.items() if name != "v"}) if fields else None
        except (ValueError, TypeError, AttributeError):
            return None
        return identity if identity is not None and identity._is_sound else None

    @property
    def _is_sound(self) -> bool:
        """Whether the file has the values that this class writes. Checked because directories are deleted by these names."""
        numbers = isinstance(self.generation, int) and isinstance(self.iteration, int | None)
        return numbers and isinstance(self.place, str | None) and bool(re.fullmatch("[0-9a-f]{12}", str(self.run)))

    def write(self, settings: Checkpointing, is_new: bool = True) -> None:
        """Write the file, on the first rank. With `is_new` false, only the iteration has changed."""
        content = (json.dumps({"v": 1, **dataclasses.asdict(self)}) + "\n").encode()
        # The hidden file first: after a kill between the two, the copies are still known and can be deleted.
        for name in (HIDDEN, FILE) if is_new else (FILE,):
            storage.write_bytes(record_path(settings, name), content)

    def delete(self, settings: Checkpointing) -> None:
        """Delete the file when the run has no more copies. The first rank calls it."""
        for name in (FILE, HIDDEN):
            storage.remove(record_path(settings, name))


def record_path(settings: Checkpointing, name: str = FILE) -> str:
    return os.path.join(str(settings.save), name)


def _save(settings: Checkpointing) -> str:
    return str(settings.save) if settings.is_remote else os.path.realpath(str(settings.save))
