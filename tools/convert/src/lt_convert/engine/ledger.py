"""The ledger of a conversion in parts: the terms that all parts share, and the parts that have finished.

It lies in the partial directory, which the parts fill together: `.lt-convert.parts/plan` has the options and the source, and is
never changed; `.lt-convert.parts/ledger` has a line of fixed length for each part; a journal for each part is beside them. A
part notes in the ledger, under a lock, that it has finished, and reads under the same lock whether it is the last. The lock is
on the ledger itself, because NFS locks files for all nodes, and directories only for one; and because taking it makes NFS read
again what other nodes have written.
"""

import contextlib
import dataclasses
import fcntl
import glob
import json
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from lt_shared.console import CannotCreate, TryAgain
from lt_shared.console.shard_option import Slice
from lt_shared.files import ownership, strict_json
from lt_shared.files.local_files import PartialDirectory, flock, is_at, partial_path, writing

STATE = ".lt-convert.parts"
PLAN, LEDGER = f"{STATE}/plan", f"{STATE}/ledger"
LINE_BYTES = 256
SHOWN = 8
STARTED, FINISHED = "started", "finished"
_BEING_MADE = f"{STATE}."


@dataclasses.dataclass(frozen=True)
class Terms:
    """The terms that all parts share. `identity` is the plan's, `source` a checksum of the source's fingerprint."""

    version: str
    options: Mapping[str, Any]
    source: str
    identity: str

    def to_record(self, count: int) -> dict[str, Any]:
        record = {"parts": count, **dataclasses.asdict(self)}
        plain: dict[str, Any] = json.loads(json.dumps(record))
        return plain


@dataclasses.dataclass(frozen=True)
class Line:
    """A part's line in the ledger: `state` is empty, STARTED or FINISHED."""

    state: str = ""
    host: str = ""
    process: int = 0
    time: str = ""

    @classmethod
    def now(cls, state: str) -> Self:
        return cls(state, socket.gethostname()[:100], os.getpid(), time.strftime("%Y-%m-%d %H:%M:%S"))

    def to_bytes(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode().ljust(LINE_BYTES - 1) + b"\n"

    @classmethod
    def parse(cls, content: bytes) -> Self:
        try:
            return cls(**json.loads(content))
        except (ValueError, TypeError):
            return cls()


@dataclasses.dataclass(frozen=True)
class Ledger:
    """The ledger in a partial directory, for part `part`. `destination` is for messages."""

    directory: PartialDirectory
    part: Slice
    destination: str
    # Whether this part has begun it.
    is_new: bool = False

    @classmethod
    def open(cls, directory: PartialDirectory, part: Slice, terms: Terms, destination: str) -> Self:
        """Open the ledger, or begin one in an empty directory.

        Raises CannotCreate if it was begun with other terms, naming them, or if the directory has other files, and
        FileNotFoundError if the directory has just been published.
        """
        ledger = cls(directory, part, destination)
        record = terms.to_record(part.count)
        begun = ledger._plan()
        if begun is None:
            with os.scandir(directory.descriptor) as entries:
                foreign = sorted(entry.name for entry in entries if not entry.name.startswith(STATE))
            # Between the two looks another part may have begun the ledger, and then its files.
            begun = ledger._plan()
            if begun is None and foreign:
                if not is_at(directory.descriptor, directory.path):
                    raise FileNotFoundError(directory.path)
                raise CannotCreate(
                    f"{destination}: {directory.path} is of a conversion by one process, which has not finished",
                    f"run that again without --shard, or begin anew: rm -r {directory.path}",
                )
        is_new = begun is None and ledger._begin(record)
        ledger._check(begun or ledger._plan() or {}, record)
        return dataclasses.replace(ledger, is_new=is_new)

    def _plan(self) -> dict[str, Any] | None:
        try:
            descriptor = self.directory.open(PLAN, os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            return None
        with open(descriptor, "rb") as file:
            content = file.read()
        try:
            return dict(strict_json.loads(content))
        except (ValueError, TypeError):
            raise CannotCreate(f"{self.directory.path}/{PLAN}: malformed", f"begin anew: rm -r {self.directory.path}") from None

    def _begin(self, record: dict[str, Any]) -> bool:
        """Make the ledger, complete, by a rename: only one part succeeds if several begin at the same moment."""
        name = f"{_BEING_MADE}{secrets.token_hex(8)}"
        descriptor = self.directory.descriptor
        with writing(f"{self.directory.path}/{STATE}"):
            for file_name, content in (
                ("plan", json.dumps(record).encode() + b"\n"),
                ("ledger", Line().to_bytes() * self.part.count),
            ):
                with open(self.directory.open(f"{name}/{file_name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            try:
                os.rename(name, STATE, src_dir_fd=descriptor, dst_dir_fd=descriptor)
            except OSError:
                shutil.rmtree(name, ignore_errors=True, dir_fd=descriptor)
                if self._plan() is None:
                    raise
                return False
        return True

    def _check(self, begun: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        difference = _difference(begun, record)
        if difference:
            raise CannotCreate(
                f"{self.destination}: part {self.part.index} of {self.part.count} is not like the parts before it: {difference}",
                f"start all parts with the same command; to begin anew: rm -r {self.directory.path}",
            )

    def tidy(self) -> None:
        """Delete the ledgers that killed parts have left half-made."""
        with os.scandir(self.directory.descriptor) as entries:
            names = [entry.name for entry in entries if entry.name.startswith(_BEING_MADE)]
        for name in names:
            shutil.rmtree(name, ignore_errors=True, dir_fd=self.directory.descriptor)

    def journal(self, index: int) -> str:
        """The name of the journal of a part, relative to the directory."""
        return f"{STATE}/{index:05d}.journal"

    def intervals(self, index: int) -> str:
        """The name of the file with a part's reads in the ranges that several parts read."""
        return f"{STATE}/{index:05d}.intervals"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep the part from another process that was given the same one. Raises TryAgain if that came first."""
        descriptor = self.directory.open(f"{STATE}/{self.part.index:05d}.lock", os.O_RDWR | os.O_CREAT)
        try:
            try:
                flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TryAgain(
                    f"{self.destination}: another process is writing part {self.part.index} of {self.part.count}",
                    "wait for that process to end",
                ) from None
            yield
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Yield a descriptor of the ledger, while no other part reads or changes it."""
        descriptor = self.directory.open(LEDGER, os.O_RDWR)
        try:
            flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    def note(self, descriptor: int, state: str) -> None:
        """Note the state of this part in the ledger, which is `locked`."""
        with writing(f"{self.directory.path}/{LEDGER}"):
            os.pwrite(descriptor, Line.now(state).to_bytes(), self.part.index * LINE_BYTES)
            os.fsync(descriptor)

    def lines(self, descriptor: int) -> list[Line]:
        return _parsed(os.pread(descriptor, self.part.count * LINE_BYTES, 0), self.part.count)


def remove_abandoned(destination: str, options: Mapping[str, Any]) -> None:
    """Delete the files of parts with these options that began after the result was published, if none of them runs."""
    partial = partial_path(destination.rstrip("/"))
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError), contextlib.ExitStack() as stack:
        if ownership.belongs_to_other(os.lstat(partial), os.path.dirname(partial)) is not None:
            return
        names = os.listdir(partial)
        if STATE in names:
            with open(f"{partial}/{STATE}/plan", "rb") as file:
                if strict_json.loads(file.read())["options"] != json.loads(json.dumps(options)):
                    return
        elif any(not name.startswith(_BEING_MADE) for name in names):
            return
        locked = (f"{glob.escape(partial)}/{STATE}/{name}" for name in ("ledger", "*.lock"))
        for place in (partial, *(path for pattern in locked for path in glob.glob(pattern))):
            descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY if place == partial else os.O_RDWR)
            stack.callback(os.close, descriptor)
            # Without locks, nobody can tell: then it stays.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(partial)


def pending(destination: str) -> list[str]:
    """Describe each part of an unfinished conversion to `destination` that has not finished; empty without such a conversion."""
    place = f"{partial_path(destination.rstrip('/'))}/{STATE}"
    try:
        with open(f"{place}/ledger", "rb") as file:
            content = file.read()
    except OSError:
        return []
    return describe(_parsed(content, len(content) // LINE_BYTES))


def describe(lines: Sequence[Line]) -> list[str]:
    """Describe each part that has not finished."""
    return [
        f"part {number} of {len(lines)} " + (f"(begun on {line.host}, {line.time})" if line.state else "(never begun)")
        for number, line in enumerate(lines)
        if line.state != FINISHED
    ]


def abbreviated(unfinished: Sequence[str]) -> str:
    """Join the descriptions of parts for a message, the first ones if there are many."""
    more = f" and {len(unfinished) - SHOWN} more" if len(unfinished) > SHOWN else ""
    return ", ".join(unfinished[:SHOWN]) + more


def _parsed(content: bytes, count: int) -> list[Line]:
    return [Line.parse(content[number * LINE_BYTES : (number + 1) * LINE_BYTES]) for number in range(count)]


def _difference(begun: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """Name the first difference between the terms that the ledger was begun with and this part's; empty without one."""
    if begun == record:
        return ""
    if begun.get("parts") != record["parts"]:
        return f"there are {begun.get('parts')} parts in all"
    if begun.get("version") != record["version"]:
        return f"they are by lt-convert {begun.get('version')}, this is {record['version']}"
    options = begun.get("options")
    stored = options if isinstance(options, dict) else {}
    for name in sorted({*stored, *record["options"]}):
        if stored.get(name) != record["options"].get(name):
            return f"{name} is {json.dumps(stored.get(name))} there, and {json.dumps(record['options'].get(name))} here"
    if begun.get("source") != record["source"]:
        return "the source has changed since they began"
    return "their plan is another one"
