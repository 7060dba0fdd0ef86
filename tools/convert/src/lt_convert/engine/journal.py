"""The journal of an interrupted conversion: the finished tensors, so that the next run with this plan resumes after them.

The journal lies in the partial directory. It is used only if no other user could have written it or the files that it lists: in a
directory that others can write to, anyone could plant a journal.
"""

import dataclasses
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator

from lt_convert.tensors.checksums import Piece
from lt_shared.console import note
from lt_shared.files import ownership
from lt_shared.files.local_files import PartialDirectory, writing

JOURNAL = ".lt-convert.journal"
SYNC_SECONDS = 5.0


@dataclasses.dataclass
class Journal:
    """The finished pieces of a plan by (file, offset): one JSON line each, after a line with the plan's identity.

    `name` is the file of the journal; each part of a conversion in parts has one.
    """

    directory: PartialDirectory
    finished: dict[tuple[str, int], Piece]
    name: str = JOURNAL
    pending: list[Piece] = dataclasses.field(default_factory=list)
    synced: float = dataclasses.field(default_factory=time.monotonic)

    @classmethod
    def open(cls, directory: PartialDirectory, identity: str) -> "Journal":
        """The journal that an earlier run of this plan left, or a new one in a directory that is emptied."""
        reason = reason_for_distrust(directory)
        if reason is not None:
            note(f"{directory.path}/{reason}: not used, the conversion starts over")
        pieces = None if reason is not None else _resumable(directory, JOURNAL, identity)
        if pieces is None:
            directory.empty()
            with writing(f"{directory.path}/{JOURNAL}"):
                descriptor = directory.open(JOURNAL, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                with open(descriptor, "wb") as file:
                    file.write(identity.encode() + b"\n")
            return cls(directory, {})
        return cls(directory, pieces)

    @classmethod
    def open_beside_others(cls, directory: PartialDirectory, identity: str, name: str) -> "Journal":
        """The journal `name` in a directory that other processes write to: nothing else in it is touched."""
        pieces = _resumable(directory, name, identity)
        if pieces is None:
            with writing(f"{directory.path}/{name}"):
                descriptor = directory.open(name, os.O_WRONLY | os.O_CREAT)
                with open(descriptor, "wb") as file:
                    file.truncate()
                    file.write(identity.encode() + b"\n")
        return cls(directory, pieces or {}, name)

    def add(self, piece: Piece) -> None:
        self.pending.append(piece)
        if time.monotonic() - self.synced >= SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Sync the pending pieces to disk, then record them."""
        for name in {piece.file for piece in self.pending}:
            descriptor = self.directory.open(name, os.O_WRONLY)
            try:
                with writing(f"{self.directory.path}/{name}"):
                    os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
        lines = b"".join(json.dumps(dataclasses.astuple(piece)).encode() + b"\n" for piece in self.pending)
        with writing(f"{self.directory.path}/{self.name}"):
            descriptor = self.directory.open(self.name, os.O_WRONLY | os.O_APPEND)
            with open(descriptor, "ab") as file:
                file.write(lines)
        self.finished |= {(piece.file, piece.offset): piece for piece in self.pending}
        self.pending = []
        self.synced = time.monotonic()


def read_pieces(directory: PartialDirectory, name: str, identity: str) -> dict[tuple[str, int], Piece] | None:
    """Read the pieces in a journal; None for a journal that is missing or belongs to another plan."""
    lines = _lines(directory, name)
    if not lines or lines[0].decode(errors="replace") != identity:
        return None
    return {(piece.file, piece.offset): piece for piece in _pieces(lines[1:])}


def _resumable(directory: PartialDirectory, name: str, identity: str) -> dict[tuple[str, int], Piece] | None:
    """Read a journal, and cut off the incomplete last line that a kill or a power failure may leave. None as `read_pieces`."""
    lines = _lines(directory, name)
    if not lines or lines[0].decode(errors="replace") != identity:
        return None
    pieces = list(_pieces(lines[1:]))
    descriptor = directory.open(name, os.O_WRONLY)
    try:
        os.ftruncate(descriptor, sum(len(line) + 1 for line in lines[: 1 + len(pieces)]))
    finally:
        os.close(descriptor)
    return {(piece.file, piece.offset): piece for piece in pieces}


def _lines(directory: PartialDirectory, name: str) -> list[bytes]:
    """The complete lines of a journal; none if it is missing."""
    try:
        descriptor = directory.open(name, os.O_RDONLY)
    except FileNotFoundError:
        return []
    with open(descriptor, "rb") as file:
        return file.read().split(b"\n")[:-1]


def reason_for_distrust(directory: PartialDirectory) -> str | None:
    """Name the first file in the directory that this user has not written, and the reason; None if there is none."""
    return next(_reasons_for_distrust(directory), None)


def _reasons_for_distrust(directory: PartialDirectory) -> Iterator[str]:
    """What in the directory this user has not made, in words: its name and why. Its own files have the mode of the umask."""
    for folder, folders, names, descriptor in os.fwalk(".", dir_fd=directory.descriptor):
        for name in (*folders, *names):
            try:
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            except FileNotFoundError:
                # Another part of the conversion has just renamed or deleted it.
                continue
            reason = _reason_for_distrust(status, directory)
            if reason is not None:
                yield f"{os.path.normpath(os.path.join(folder, name))} {reason}"


def _reason_for_distrust(status: os.stat_result, directory: PartialDirectory) -> str | None:
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return "is neither a file nor a directory"
    if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        return "has another name (a hard link)"
    return ownership.belongs_to_other(status, directory.path) or ownership.writable_by_others(status, directory.path, 0o666)


def _pieces(lines: Iterable[bytes]) -> Iterable[Piece]:
    """The pieces in the journal's lines, up to the first incomplete line."""
    for line in lines:
        try:
            yield Piece(*json.loads(line))
        except (ValueError, TypeError):
            return


def open_output(directory: PartialDirectory, name: str, size_bytes: int) -> None:
    """Create a file of the final size; threads write at their offsets. A file that a trusted journal lists is kept."""
    try:
        descriptor = directory.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        descriptor = directory.open(name, os.O_RDWR)
    try:
        with writing(f"{directory.path}/{name}"):
            os.ftruncate(descriptor, size_bytes)
    finally:
        os.close(descriptor)
