"""Record the progress of a run on disk, so that a later run of the same plan can resume.

A hidden file beside the outputs, `.NAME.journal`, has one JSON object per line: the plan's fingerprint first, then a line for
every sync of the outputs. A truncated line is ignored. Output written after the last sync is truncated and made again. The
process that has the file open holds a lock on it. On a remote store, whose objects cannot grow, only finished parts are
recorded, without a lock.

The disk may return other bytes than were written. So a line has the CRC-32 of every partial file, and the files are read back
before the run resumes, at the speed of the disk. Files that differ, or that another user may have written, are made again. A line
also names the files to delete on a restart, so a line with a name that is no output of this run is ignored.
"""

import contextlib
import dataclasses
import glob
import json
import os
import re
from collections.abc import Iterator
from typing import IO, Any

from lt_preprocess.pipeline import origin_rows, sidecar
from lt_preprocess.pipeline.plan import Plan
from lt_preprocess.pipeline.state import State
from lt_shared import version_of
from lt_shared.console import CannotCreate, IoFailure, ToolError, TryAgain, note
from lt_shared.data import indexed_dataset
from lt_shared.data.indexed_dataset import Extent
from lt_shared.files import checksums, resumable_files, storage
from lt_shared.files.local_files import open_own, writing

VERSION = 3


class Journal:
    """A run's record. This base class records nothing; it serves standard input and remote outputs in one part."""

    is_resumable = False
    """Whether the partial files of a part can be continued."""

    def __init__(self, plan: Plan):
        self._plan = plan
        self.state: State | None = None
        """The progress of this run, or of an earlier run of the same plan."""

    def write(self, state: State) -> None:
        """Record that everything up to `state` is durable."""

    def delete(self) -> None:
        """Delete the record and the partial files, after publishing or if no progress is worth keeping."""

    def _header(self) -> dict[str, Any]:
        return {"v": VERSION, "kind": "journal", "plan": self._plan.fingerprint, "made_by": version_of("lt-preprocess")}

    def _state_in(self, records: list[dict[str, Any]], on_error: str) -> State | None:
        """The last state that the records of an earlier run hold, if it ran the same plan."""
        if not records or records[0] != self._header():
            return None
        if records[1]["datasets"] != self._plan.output_prefixes(records[1]["part"]):
            return None
        state = State.from_record(records[1])
        return state if records[1]["on_error"] == on_error or state.bad_lines == 0 else None

    def _record(self, state: State) -> dict[str, Any]:
        return dataclasses.asdict(state) | {
            "on_error": self._plan.options.on_error,
            "datasets": self._plan.output_prefixes(state.part),
            "quarantine": self._plan.quarantine_path(state.part),
        }


class RemoteJournal(Journal):
    """On a remote store: which parts are finished."""

    def __init__(self, path: str, plan: Plan):
        super().__init__(plan)
        self._path = path
        records = _records(storage.read_record(path), plan) if storage.exists(path) else []
        self.state = self._state_in(records, plan.options.on_error)
        if self.state is not None and not _finished_parts_are_whole(self.state, plan):
            self.state = None

    def write(self, state: State) -> None:
        if not any(extent != Extent() for extent in state.extents):
            self.state = state
            storage.write_bytes(self._path, _line(self._header()) + _line(self._record(state)))

    def delete(self) -> None:
        storage.remove(self._path)


class LocalJournal(Journal):
    """In a local file that is locked."""

    is_resumable = True

    def __init__(self, path: str, file: IO[bytes], plan: Plan):
        super().__init__(plan)
        self._path = path
        self._file = file
        content = file.read()
        records = _records(content, plan)
        if content.count(b"\n") > 1 and not records:
            note(f"{path}: no valid record of the earlier run: starting from the beginning")
        self.state = self._state_in(records, plan.options.on_error)
        if self.state is not None and _can_resume(self.state, plan):
            file.seek(content.rfind(b"\n") + 1)
            file.truncate()
        else:
            if self.state is not None and self.state.is_worth_keeping:
                note(f"{path}: what it describes is gone or damaged: starting from the beginning")
            self.state = None
            if records:
                _discard(records[1])
            file.seek(0)
            file.truncate()
            try:
                self._append(self._header())
            except IoFailure:
                os.unlink(path)
                raise

    def write(self, state: State) -> None:
        self._append(self._record(state))
        with writing(self._path):
            os.fsync(self._file.fileno())
        self.state = state

    def _append(self, record: dict[str, Any]) -> None:
        remaining = memoryview(_line(record))
        with writing(self._path):
            while remaining:
                remaining = remaining[self._file.write(remaining) :]

    def delete(self) -> None:
        if self.state is not None:
            _discard(self._record(self.state))
        os.unlink(self._path)


def _can_resume(state: State, plan: Plan) -> bool:
    """Whether all recorded output is intact. Retracts published files of a dataset that was not published completely."""
    if not _finished_parts_are_whole(state, plan):
        return False
    for prefix, extent in zip(plan.output_prefixes(state.part), state.extents, strict=True):
        if state.is_closed and not indexed_dataset.retract_unfinished(prefix):
            if not sidecar.is_whole(prefix, plan, state.part):
                return False
        elif not indexed_dataset.can_resume(prefix, plan.dtype_of(prefix), extent):
            return False
    prefixes = plan.output_prefixes(state.part)
    is_published = state.is_closed and not any(map(indexed_dataset.is_partial, prefixes))
    if not is_published and not resumable_files.holds(origin_rows.name(prefixes[0]), state.origin_bytes, state.origin_crc32):
        return False
    quarantine = plan.quarantine_path(state.part)
    if state.is_closed and os.path.isfile(quarantine) and not resumable_files.exists(quarantine):
        return (os.path.getsize(quarantine), checksums.crc32_of_path(quarantine)) == (
            state.quarantine_bytes,
            state.quarantine_crc32,
        )
    return resumable_files.holds(quarantine, state.quarantine_bytes, state.quarantine_crc32)


def _finished_parts_are_whole(state: State, plan: Plan) -> bool:
    return all(sidecar.is_whole(prefix, plan, part) for part in range(state.part) for prefix in plan.output_prefixes(part))


def _discard(record: dict[str, Any]) -> None:
    """Delete the partial files that a line of the journal names."""
    for prefix in record["datasets"]:
        indexed_dataset.discard_partial(prefix)
    resumable_files.discard(origin_rows.name(record["datasets"][0]))
    resumable_files.discard(record["quarantine"])


def _discard_overlapping(plan: Plan, path: str) -> None:
    """Delete what interrupted runs with other --json-keys left of datasets that this plan makes.

    This run writes their partial files anew, so they could not be continued. A run that is still running is left alone: its locks
    keep this one out.
    """
    of_any_key = os.path.join(glob.escape(os.path.dirname(plan.prefix)), f".{glob.escape(os.path.basename(plan.prefix))}_*")
    for other in sorted(glob.glob(f"{of_any_key}_document.journal")):
        if other == path:
            continue
        # Another user's is of no use here, and he may have left anything under this name.
        with contextlib.suppress(TryAgain, FileNotFoundError, CannotCreate):
            # Read without the lock first, so that the lock of an unrelated run is not taken even for a moment.
            with open(open_own(other, os.O_RDONLY, plan.prefix), "rb") as unlocked:
                if not _overlapping(unlocked, plan):
                    continue
            with resumable_files.locked(other, plan.prefix) as file:
                for record in _overlapping(file, plan):
                    _discard(record)
                    os.unlink(other)


def _overlapping(journal: IO[bytes], plan: Plan) -> list[dict[str, Any]]:
    """The last state in a journal if its run was making a dataset that the plan makes, too."""
    states = _records(journal.read(), plan)[1:]
    return [state for state in states if set(state["datasets"]) & set(plan.output_prefixes(state["part"]))]


def delete_finished(plan: Plan) -> None:
    """Delete the journal and the partial files of a run of the plan that was killed after it had published everything."""
    path = _path(plan)
    if storage.is_remote(path):
        if plan.options.has_parts:
            storage.remove(path)
    elif os.path.lexists(path):
        # The datasets are up to date whatever is in the way; a run that is still at work deletes its own.
        with contextlib.suppress(ToolError, OSError), resumable_files.locked(path, plan.prefix) as file:
            records = _records(file.read(), plan)
            if not records or records[0].get("plan") == plan.fingerprint:
                for record in records[1:]:
                    _discard(record)
                os.unlink(path)


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _records(content: bytes, plan: Plan) -> list[dict[str, Any]]:
    """The first line and the last one that holds a state, or nothing. A crash of the machine may leave anything else."""
    lines = content.split(b"\n")[:-1]
    for last in range(len(lines) - 1, 0, -1):
        with contextlib.suppress(ValueError, RecursionError):
            header, record = json.loads(lines[0]), json.loads(lines[last])
            if isinstance(header, dict) and _is_state(record, plan):
                return [header, _with_names_here(record, plan)]
    return []


def _is_state(record: Any, plan: Plan) -> bool:
    """Whether a line of a journal has what `Journal._record` writes in a run with the same output, perhaps of other keys."""
    try:
        state, datasets = State.from_record(record), record["datasets"]
        names = [*datasets, record["quarantine"], record["on_error"]]
    except (TypeError, KeyError, ValueError):
        return False
    part = re.escape(os.path.basename(plan.prefix)) + r"(-part[0-9]{5,})?_"
    return (
        state.is_sound
        and isinstance(datasets, list)
        and len(datasets) == len(state.extents) > 0
        and all(isinstance(name, str) for name in names)
        and all(re.fullmatch(rf"{part}.+_document(\.loss_mask)?", os.path.basename(name), re.DOTALL) for name in datasets)
        and re.fullmatch(f"{part}quarantine[.]jsonl", os.path.basename(record["quarantine"])) is not None
    )


def _with_names_here(record: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """Replace the directory of every name by the current directory: it may have been moved, and no file outside is touched."""
    directory = os.path.dirname(plan.prefix)
    datasets = [os.path.join(directory, os.path.basename(name)) for name in record["datasets"]]
    return record | {"datasets": datasets, "quarantine": os.path.join(directory, os.path.basename(record["quarantine"]))}


def _path(plan: Plan) -> str:
    directory, name = os.path.split(f"{plan.prefix}_{plan.options.json_keys[0]}_document")
    return f"{directory}/.{name}.journal"


@contextlib.contextmanager
def opened(plan: Plan, anew: bool = False) -> Iterator[Journal]:
    """The journal of a plan. With `anew`, what an earlier run has done is forgotten.

    Raises TryAgain when another process is running the plan, CannotCreate when there is no such directory.
    """
    prefix, path = f"{plan.prefix}_{plan.options.json_keys[0]}_document", _path(plan)
    if plan.fingerprint is None:
        yield Journal(plan)
    elif storage.is_remote(prefix):
        if not plan.options.has_parts:
            yield Journal(plan)
            return
        if anew:
            storage.remove(path)
        yield RemoteJournal(path, plan)
    else:
        with resumable_files.locked(path, prefix) as file:
            if anew:
                # This read consumes the file, so that LocalJournal finds no records and starts from the beginning.
                with contextlib.suppress(IndexError):
                    _discard(_records(file.read(), plan)[1])
            _discard_overlapping(plan, path)
            yield LocalJournal(path, file, plan)
