"""The progress of a run, on disk, so that a later run of the same plan resumes from there.

A hidden file beside the outputs, `.NAME.journal`, one JSON object a line: the plan's fingerprint first, then a line for each time
that the outputs were synced. A truncated line is ignored. What was written to the outputs after the last sync is cut off and made
again. The process that has the file open holds a lock on it. On a remote store, where files cannot be appended to, only finished
parts are recorded, and there is no lock.
"""

import contextlib
import dataclasses
import glob
import json
import os
from collections.abc import Iterator
from typing import IO, Any, Self

from lt_preprocess import __version__
from lt_preprocess.pipeline.plan import Plan
from lt_preprocess.readers.chunks import Position
from lt_shared import indexed_dataset, resumable_files, storage
from lt_shared.console import TryAgain, note
from lt_shared.indexed_dataset import Extent

VERSION = 1
BEGINNING = Position()


@dataclasses.dataclass(frozen=True)
class State:
    """What is on disk. Reading resumes at `position`; the first `taken` documents from there have been written.

    `part` is being written. It has `extents`, one for each key, and `quarantine_bytes`, from the inputs with the indices
    `first_input` to `last_input` (None: from none yet); earlier parts had `bad_lines_before`. `is_closed`: the part is complete
    and to be published; `is_last`: no part follows.
    """

    position: Position = BEGINNING
    taken: int = 0
    part: int = 0
    first_input: int | None = None
    last_input: int | None = None
    extents: tuple[Extent, ...] = ()
    quarantine_bytes: int = 0
    bad_lines_before: int = 0
    bad_lines: int = 0
    reported: tuple[str, ...] = ()
    text_bytes: int = 0
    is_closed: bool = False
    is_last: bool = False

    def with_input(self, number: int) -> "State":
        """Something of this input comes into the part."""
        first = number if self.first_input is None else self.first_input
        return dataclasses.replace(self, first_input=first, last_input=number)

    def next_part(self) -> "State":
        """Nothing of the next part is written."""
        return dataclasses.replace(
            self,
            part=self.part + 1,
            first_input=None,
            last_input=None,
            extents=tuple(Extent() for _ in self.extents),
            quarantine_bytes=0,
            bad_lines_before=self.bad_lines,
            is_closed=False,
        )

    @property
    def is_worth_keeping(self) -> bool:
        return self.part > 0 or any(extent != Extent() for extent in self.extents)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        known = {field.name: record[field.name] for field in dataclasses.fields(cls)}
        return cls(
            **known
            | {
                "position": Position(*known["position"]),
                "extents": tuple(Extent(**extent) for extent in known["extents"]),
                "reported": tuple(known["reported"]),
            }
        )


class Journal:
    """The record of one run. This one keeps nothing: for standard input, and for remote outputs in one part."""

    is_resumable = False
    """Whether the partial files of a part can be continued."""

    def __init__(self, plan: Plan):
        self._plan = plan
        self.state: State | None = None
        """What this run, or an earlier one of the same plan, has done."""

    def write(self, state: State) -> None:
        """Record what is durable now."""

    def delete(self) -> None:
        """Forget all: everything is published, or nothing of it is worth keeping."""

    def _header(self) -> dict[str, Any]:
        return {"v": VERSION, "kind": "journal", "plan": self._plan.fingerprint, "made_by": __version__}

    def _state_in(self, records: list[dict[str, Any]], on_error: str) -> State | None:
        """The last state that the records of an earlier run hold, if it ran the same plan."""
        if len(records) < 2 or records[0] != self._header():
            return None
        state = State.from_record(records[-1])
        return state if records[-1]["on_error"] == on_error or state.bad_lines == 0 else None

    def _record(self, state: State) -> dict[str, Any]:
        return dataclasses.asdict(state) | {
            "on_error": self._plan.options.on_error,
            "datasets": self._plan.dataset_prefixes(state.part),
            "quarantine": self._plan.quarantine_path(state.part),
        }


class RemoteJournal(Journal):
    """On a remote store: which parts are finished."""

    def __init__(self, path: str, plan: Plan):
        super().__init__(plan)
        self._path = path
        records = _records(storage.read_bytes(path)) if storage.exists(path) else []
        self.state = self._state_in(records, plan.options.on_error)

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
        records = _records(content)
        if content.count(b"\n") > 1 and not records:
            note(f"{path}: no valid record of the earlier run: starting from the beginning")
        self.state = self._state_in(records, plan.options.on_error)
        if self.state is not None and _can_resume(self.state, plan):
            file.seek(content.rfind(b"\n") + 1)
            file.truncate()
        else:
            self.state = None
            if len(records) > 1:
                _discard(records[-1])
            file.seek(0)
            file.truncate()
            file.write(_line(self._header()))

    def write(self, state: State) -> None:
        self._file.write(_line(self._record(state)))
        os.fsync(self._file.fileno())
        self.state = state

    def delete(self) -> None:
        if self.state is not None:
            _discard(self._record(self.state))
        os.unlink(self._path)


def _can_resume(state: State, plan: Plan) -> bool:
    """Whether the partial files are there; what was published of a dataset that is not whole is made partial again."""
    for prefix, extent in zip(plan.dataset_prefixes(state.part), state.extents, strict=True):
        if state.is_closed and not indexed_dataset.retract_unfinished(prefix):
            continue
        if not indexed_dataset.can_resume(prefix, plan.dtype, extent):
            return False
    quarantine = plan.quarantine_path(state.part)
    is_published = state.is_closed and os.path.exists(quarantine) and not resumable_files.exists(quarantine)
    return is_published or resumable_files.holds(quarantine, state.quarantine_bytes)


def _discard(record: dict[str, Any]) -> None:
    """Delete the partial files that a line of the journal names."""
    for prefix in record["datasets"]:
        indexed_dataset.discard_partial(prefix)
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
        with contextlib.suppress(TryAgain, FileNotFoundError):
            # Looked at without the lock first: that of a run with nothing in common is not taken even for a moment.
            with open(other, "rb") as unlocked:
                if not _overlapping(unlocked, plan):
                    continue
            with resumable_files.locked(other, plan.prefix) as file:
                for record in _overlapping(file, plan):
                    _discard(record)
                    os.unlink(other)


def _overlapping(journal: IO[bytes], plan: Plan) -> list[dict[str, Any]]:
    """The last state in a journal if its run was making a dataset that the plan makes, too."""
    states = _records(journal.read())[1:]
    return [state for state in states if set(state["datasets"]) & set(plan.dataset_prefixes(state["part"]))]


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n"


def _records(content: bytes) -> list[dict[str, Any]]:
    """The first line and the last one that holds a state. A crash of the machine may leave anything else."""
    lines = content.split(b"\n")[:-1]
    for last in range(len(lines) - 1, 0, -1):
        with contextlib.suppress(ValueError):
            record = json.loads(lines[last])
            if _is_state(record):
                return [json.loads(lines[0]), record]
    return []


def _is_state(record: Any) -> bool:
    """Whether a line of a journal has what `Journal._record` writes."""
    try:
        state = State.from_record(record)
        datasets, names = record["datasets"], [*record["datasets"], record["quarantine"], record["on_error"], *state.reported]
    except (TypeError, KeyError):
        return False
    inputs = [number for number in (state.first_input, state.last_input) if number is not None]
    counts = [*state.position, state.taken, state.part, state.quarantine_bytes, state.bad_lines_before, state.bad_lines]
    counts += [*inputs, state.text_bytes, *(count for extent in state.extents for count in dataclasses.astuple(extent))]
    return (
        all(type(count) is int and count >= 0 for count in counts)
        and all(isinstance(name, str) for name in names)
        and isinstance(datasets, list)
        and len(datasets) == len(state.extents) > 0
        and isinstance(state.is_closed, bool)
        and isinstance(state.is_last, bool)
    )


@contextlib.contextmanager
def opened(plan: Plan, anew: bool = False) -> Iterator[Journal]:
    """The journal of a plan. With `anew`, what an earlier run has done is forgotten.

    Raises TryAgain when another process is running the plan, CannotCreate when there is no such directory.
    """
    prefix = f"{plan.prefix}_{plan.options.json_keys[0]}_document"
    directory, name = os.path.split(prefix)
    path = f"{directory}/.{name}.journal"
    if plan.fingerprint is None:
        yield Journal(plan)
    elif storage.is_remote(prefix):
        if plan.options.max_shard_bytes is None:
            yield Journal(plan)
            return
        if anew:
            storage.remove(path)
        yield RemoteJournal(path, plan)
    else:
        with resumable_files.locked(path, prefix) as file:
            if anew:
                with contextlib.suppress(IndexError):
                    _discard(_records(file.read())[-1])
                file.seek(0)
                file.truncate()
                file.seek(0)
            _discard_overlapping(plan, path)
            yield LocalJournal(path, file, plan)
