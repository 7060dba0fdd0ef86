"""Write a list of `OutputFile` with several threads, hashed, and resumable after a kill.

The files are written to `.NAME.partial`, which is renamed to the destination at the end. A thread takes one tensor at a time,
and reads, hashes and writes it in blocks of 1 MiB. Finished tensors are synced, then recorded in a journal, from which the next
run of the same plan resumes; another plan starts over. Where the disk is the limit, two threads suffice. On a remote store each
thread uploads one file at a time.
"""

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lt_convert.tensors.blocks import TensorReader, flat, row_blocks
from lt_convert.tensors.checksums import Checksums, Piece
from lt_convert.tensors.output_files import OutputFile, Payload, size_of
from lt_convert.tensors.source_files import Files
from lt_shared import storage
from lt_shared.console import BadData, CannotCreate, IoFailure, Progress, note

JOURNAL = ".lt-convert.journal"
THREADS = min(4, os.cpu_count() or 1)
SYNC_SECONDS = 5.0
FLUSH_BYTES = 8 << 20


def write_outputs(
    outputs: Sequence[OutputFile], destination: str, identity: str, replace: bool, finish: Callable[[Checksums], bytes]
) -> None:
    """Write `outputs` to `destination`. A killed run with the same `identity` is resumed.

    `finish` makes the content of `Checksums.RECORD` from the checksums; that file is written last.

    Raises: CannotCreate for an occupied destination (unless `replace`), TryAgain when another process writes it, IoFailure for a
    full disk, BadData for what the sources turn out to be.
    """
    total = sum(output.size_bytes for output in outputs)
    write = _write_remote if storage.is_remote(destination) else _write_local
    write(outputs, destination, identity, replace, finish, total)


def _write_local(
    outputs: Sequence[OutputFile],
    destination: str,
    identity: str,
    replace: bool,
    finish: Callable[[Checksums], bytes],
    total: int,
) -> None:
    with storage.publish_directory(destination, replace, resume=True) as directory:
        partial = directory.path
        journal = Journal.open(partial, identity)
        _check_space(partial, outputs, journal)
        large = [output for output in outputs if output.has_tensors]
        for output in large:
            _allocate(partial / output.name, output.size_bytes)
        left = [entry for entry in _round_robin(large) if (entry[0], entry[1]) not in journal.done]
        done_bytes = sum(piece.length for piece in journal.done.values())
        large_bytes = sum(output.size_bytes for output in large)
        if journal.done:
            note(f"{destination}: resumes after {done_bytes / 1e9:.2f} of {total / 1e9:.2f} GB")
        try:
            with Progress("convert", large_bytes, "B", done=done_bytes) as progress, _Workers(partial, left) as workers:
                for piece in workers.finished(progress.advance):
                    journal.add(piece)
        except BadData:
            # Resuming would fail again: the source is damaged.
            storage.empty_directory(partial)
            raise
        except BaseException:
            with contextlib.suppress(OSError):
                journal.sync()
            raise
        journal.sync()
        # The files that make the directory a checkpoint are written after all tensors.
        for output in outputs:
            if not output.has_tensors:
                _write_small(partial, output, journal)
        checksums = Checksums.of([(output.name, output.size_bytes) for output in outputs], journal.done.values())
        storage.write_bytes(partial / Checksums.RECORD, finish(checksums))
    # Deleted after the rename, so that a kill just before it loses nothing. A journal in a complete result is ignored.
    (Path(destination) / JOURNAL).unlink(missing_ok=True)


def _round_robin(outputs: Sequence[OutputFile]) -> Iterator[tuple[str, int, bytes | Payload]]:
    """The segments of all files, one from each file in turn, because threads that write to one file wait for each other."""
    by_file = [[(output.name, offset, segment) for offset, segment in output.segments_at()] for output in outputs]
    for turn in itertools.zip_longest(*by_file):
        yield from (entry for entry in turn if entry is not None)


def _allocate(path: Path, size_bytes: int) -> None:
    """Create a file of the final size, in which threads write at their offsets."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        os.ftruncate(descriptor, size_bytes)
    finally:
        os.close(descriptor)


def _write_small(partial: Path, output: OutputFile, journal: "Journal") -> None:
    content = b"".join(segment for segment in output.segments if isinstance(segment, bytes))
    (partial / output.name).parent.mkdir(parents=True, exist_ok=True)
    (partial / output.name).write_bytes(content)
    journal.done[output.name, 0] = Piece(output.name, 0, len(content), hashlib.sha256(content).hexdigest(), "")


def _check_space(partial: Path, outputs: Sequence[OutputFile], journal: "Journal") -> None:
    needed = sum(output.size_bytes for output in outputs) - sum(piece.length for piece in journal.done.values())
    status = os.statvfs(partial)
    free = status.f_bavail * status.f_frsize
    if needed > free:
        raise IoFailure(f"{partial.parent}: needs {needed / 1e6:,.1f} MB more, has {free / 1e6:,.1f} MB free", "make room there")


class _Workers:
    """Threads that write segments. An error in one stops all; the end of the `with` block waits for them."""

    def __init__(self, directory: Path, work: Iterable[tuple[str, int, bytes | Payload]]):
        self.directory = directory
        self._work: queue.SimpleQueue[tuple[str, int, bytes | Payload]] = queue.SimpleQueue()
        self._left = 0
        for entry in work:
            self._work.put(entry)
            self._left += 1
        self._results: queue.SimpleQueue[Piece | int | BaseException] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(THREADS)]

    def __enter__(self) -> "_Workers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def finished(self, advance: Callable[[int], None]) -> Iterable[Piece]:
        """Every piece as it is finished; `advance` is called with the bytes of every block."""
        while self._left:
            result = self._results.get()
            if isinstance(result, BaseException):
                raise result
            if isinstance(result, int):
                advance(result)
                continue
            self._left -= 1
            yield result

    def _run(self) -> None:
        try:
            with Files() as files:
                blocks = TensorReader(files)
                while not self._stop.is_set():
                    name, offset, segment = self._work.get_nowait()
                    self._results.put(self._write(name, offset, segment, blocks))
        except queue.Empty:
            pass
        except BaseException as error:
            self._results.put(error)

    def _write(self, name: str, offset: int, segment: bytes | Payload, blocks: TensorReader) -> Piece:
        digest = hashlib.sha256()
        position = flushed = offset
        descriptor = os.open(self.directory / name, os.O_WRONLY)
        try:
            for data in contents(segment, blocks):
                if self._stop.is_set():
                    break
                digest.update(data)
                written = 0
                while written < len(data):
                    written += os.pwrite(descriptor, data[written:], position + written)
                position += written
                self._results.put(written)
                if position - flushed >= FLUSH_BYTES:
                    # Linux starts to write these pages to disk, and the call does not wait.
                    os.posix_fadvise(descriptor, flushed, position - flushed, os.POSIX_FADV_DONTNEED)
                    flushed = position
        finally:
            os.close(descriptor)
        return Piece(name, offset, position - offset, digest.hexdigest(), "" if isinstance(segment, bytes) else segment.name)


def contents(segment: bytes | Payload, blocks: TensorReader) -> Iterable[memoryview]:
    """The bytes of a segment, a block at a time; each is overwritten by the next."""
    if isinstance(segment, bytes):
        yield memoryview(segment)
        return
    tensor = flat(segment.tensor)
    for start, stop in row_blocks(tensor):
        yield blocks.rows(tensor, start, stop).reshape(-1).data.cast("B")


@dataclasses.dataclass
class Journal:
    """The finished pieces of a plan by (file, offset): one JSON line each, after a line with the plan's identity."""

    directory: Path
    done: dict[tuple[str, int], Piece]
    pending: list[Piece] = dataclasses.field(default_factory=list)
    synced: float = dataclasses.field(default_factory=time.monotonic)

    @classmethod
    def open(cls, directory: Path, identity: str) -> "Journal":
        """The journal that an earlier run of this plan left, or a new one in a directory that is emptied."""
        path = directory / JOURNAL
        lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
        if not lines or lines[0].decode(errors="replace") != identity:
            storage.empty_directory(directory)
            path.write_bytes(identity.encode() + b"\n")
            return cls(directory, {})
        pieces = list(_pieces(lines[1:]))
        # A kill or a power failure may leave an incomplete last line.
        os.truncate(path, sum(len(line) + 1 for line in lines[: 1 + len(pieces)]))
        return cls(directory, {(piece.file, piece.offset): piece for piece in pieces})

    def add(self, piece: Piece) -> None:
        self.pending.append(piece)
        if time.monotonic() - self.synced >= SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Sync the pending pieces to disk, then record them."""
        for name in {piece.file for piece in self.pending}:
            descriptor = os.open(self.directory / name, os.O_WRONLY)
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
        with open(self.directory / JOURNAL, "ab") as file:
            file.write(b"".join(json.dumps(dataclasses.astuple(piece)).encode() + b"\n" for piece in self.pending))
        self.done |= {(piece.file, piece.offset): piece for piece in self.pending}
        self.pending = []
        self.synced = time.monotonic()


def _pieces(lines: Iterable[bytes]) -> Iterable[Piece]:
    """The pieces in the journal's lines, up to the first incomplete line."""
    for line in lines:
        try:
            yield Piece(*json.loads(line))
        except (ValueError, TypeError):
            return


def _write_remote(
    outputs: Sequence[OutputFile],
    destination: str,
    identity: str,
    replace: bool,
    finish: Callable[[Checksums], bytes],
    total: int,
) -> None:
    """Upload the files; those without tensors (index, configuration, tracker) come last, one after the other."""
    journal = RemoteJournal.open(destination, identity, replace)
    done_bytes = sum(output.size_bytes for output in outputs if output.name in journal.done)
    left = [output for output in outputs if output.name not in journal.done]
    with Progress("convert", total, "B", done=done_bytes) as progress:
        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            uploads = [pool.submit(_upload, output, destination, progress) for output in left if output.has_tensors]
            try:
                for upload in concurrent.futures.as_completed(uploads):
                    journal.add(upload.result())
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        for output in left:
            if not output.has_tensors:
                journal.add(_upload(output, destination, progress))
    pieces = [piece for found in journal.done.values() for piece in found]
    checksums = Checksums.of([(output.name, output.size_bytes) for output in outputs], pieces)
    storage.write_bytes(f"{destination}/{Checksums.RECORD}", finish(checksums))
    storage.remove(f"{destination}/{JOURNAL}")


def _upload(output: OutputFile, destination: str, progress: Progress) -> list[Piece]:
    pieces = []
    with Files() as files, storage.publish(f"{destination}/{output.name}") as file:
        blocks = TensorReader(files)
        for offset, segment in output.segments_at():
            digest = hashlib.sha256()
            for data in contents(segment, blocks):
                digest.update(data)
                file.write(data)
                progress.advance(len(data))
            name = "" if isinstance(segment, bytes) else segment.name
            pieces.append(Piece(output.name, offset, size_of(segment), digest.hexdigest(), name))
    return pieces


@dataclasses.dataclass
class RemoteJournal:
    """The finished files of a plan on a remote store: an object that is rewritten after every file."""

    url: str
    identity: str
    done: dict[str, list[Piece]]

    @classmethod
    def open(cls, destination: str, identity: str, replace: bool) -> "RemoteJournal":
        """Raises CannotCreate when the destination holds something else and `replace` is not set."""
        url = f"{destination}/{JOURNAL}"
        existing = storage.sizes_below(destination)
        if JOURNAL in existing:
            try:
                record = json.loads(storage.read_bytes(url))
                if record["identity"] == identity:
                    return cls(url, identity, {name: [Piece(*one) for one in found] for name, found in record["done"].items()})
            except (ValueError, KeyError, TypeError):
                pass
        if existing and not replace and JOURNAL not in existing:
            raise CannotCreate(f"{destination}: exists and is not empty", "choose another output or pass --force")
        # The record goes first: it says that the directory is complete.
        for name in sorted(existing, key=lambda name: name != Checksums.RECORD):
            storage.remove(f"{destination}/{name}")
        return cls(url, identity, {})

    def add(self, pieces: list[Piece]) -> None:
        self.done[pieces[0].file] = pieces
        done = {name: [dataclasses.astuple(one) for one in found] for name, found in self.done.items()}
        storage.write_bytes(self.url, json.dumps({"identity": self.identity, "done": done}).encode())
