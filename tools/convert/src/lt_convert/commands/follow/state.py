"""What `follow` has done, in a file in its directory: after a restart, and from cron, the next pass goes on from it.

It is replaced after each step, by rename, and only one process has it at a time. A kill between a step and its entry repeats the
step: a conversion is then found up to date, and the command is run again.
"""

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from lt_shared.console import BadData, CannotCreate, UsageError
from lt_shared.files import ownership, resumable_files, storage, strict_json

STATE, LOCK = ".lt-convert.follow.json", ".lt-convert.follow.lock"
VERSION = 1
# Others must not make the next pass forget a checkpoint or take one for done.
MODE = 0o600

_NAME = re.compile(r"iter_\d{7,}|step-\d+")


@dataclasses.dataclass
class Entry:
    """A checkpoint of the run: what was done with it.

    `written` is the time at which the run finished it, by which one that is written again is noticed. `attempts` counts the runs
    of the command and `exit_code` is that of the last one; `succeeded` is whether one of them did.
    """

    iteration: int
    written: int | None = None
    converted: bool = False
    succeeded: bool = False
    attempts: int = 0
    exit_code: int | None = None
    deleted: bool = False


@dataclasses.dataclass
class State:
    """The entries by the name of the checkpoint. `options` say what is converted to what: they cannot change in one directory."""

    path: Path
    options: Mapping[str, Any]
    entries: dict[str, Entry] = dataclasses.field(default_factory=dict)

    @classmethod
    @contextlib.contextmanager
    def open(cls, directory: Path, options: Mapping[str, Any]) -> Iterator[Self]:
        """The state in a directory, which is made if there is none, locked until the block ends.

        Raises: TryAgain while another process follows there, UsageError when it is of another run or other options, BadData for
        a file that is no such state, CannotCreate for one that others may have written.
        """
        directory.mkdir(parents=True, exist_ok=True)
        with resumable_files.locked(str(directory / LOCK), str(directory)):
            state = cls(directory / STATE, options)
            state._read()
            yield state

    def save(self) -> None:
        entries = {name: dataclasses.asdict(entry) for name, entry in self.entries.items()}
        record = {"v": VERSION, "options": dict(self.options), "checkpoints": entries}
        with storage.publish(self.path, MODE) as file:
            file.write((json.dumps(record, indent=1) + "\n").encode())

    def in_order(self) -> list[tuple[str, Entry]]:
        return sorted(self.entries.items(), key=lambda item: item[1].iteration)

    def _read(self) -> None:
        if not os.path.lexists(self.path):
            return
        reason = ownership.reason_for_distrust(os.lstat(self.path), self.path.parent)
        if reason is not None:
            raise CannotCreate(f"{self.path}: {reason}", "choose another directory")
        try:
            record = strict_json.loads(storage.read_record(self.path))
            if record["v"] != VERSION:
                raise ValueError("it was written by another version")
            options = dict(record["options"])
            self.entries = {_checked(name): _entry(fields) for name, fields in record["checkpoints"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadData(f"{self.path}: not a state of lt-convert follow: {error}", "delete it to begin again") from None
        for name, value in self.options.items():
            if options.get(name) != value:
                raise UsageError(
                    f"{self.path.parent}: follows with {name} {options.get(name)}, not {value}", "choose another directory"
                )


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a checkpoint")
    return name


def _entry(fields: dict[str, Any]) -> Entry:
    entry = Entry(**fields)
    numbers = (entry.iteration, entry.attempts, entry.written or 0, entry.exit_code or 0)
    if not all(type(number) is int for number in numbers):
        raise ValueError("a number is none")
    if not all(type(flag) is bool for flag in (entry.converted, entry.succeeded, entry.deleted)):
        raise ValueError("a flag is neither true nor false")
    return entry
