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
    """The progress on one checkpoint of the run.

    `written` is the time when the run finished the checkpoint; a later time shows that the run has written it again.
    `attempts` counts the runs of the command, `exit_code` belongs to the last run, and `succeeded` is whether any run succeeded.
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
    """The entries by checkpoint name. `options` name the run and the target format, which cannot change in one directory."""

    path: Path
    options: Mapping[str, Any]
    entries: dict[str, Entry] = dataclasses.field(default_factory=dict)

    @classmethod
    @contextlib.contextmanager
    def open(cls, directory: Path, options: Mapping[str, Any]) -> Iterator[Self]:
        """Open the state in a directory, and lock it until the block ends. A missing directory is created.

        Raises: TryAgain while another process follows into the directory, UsageError if the state belongs to another run or to
        other options, BadData for a malformed file, CannotCreate if another user may have written the file.
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
