"""Write a list of `OutputFile` with several threads, hashed, and resumable after a kill.

The files are written to `.NAME.partial`, which is renamed to the destination at the end. A thread takes one tensor at a time,
and reads, hashes and writes it in blocks of 1 MiB. `WriteBack` starts their way to the disk. Finished tensors are synced, then
recorded in a journal, from which the next run of this plan resumes; another plan starts over. If the disk is the limit, two
threads suffice. On a remote store a thread uploads one file at a time.

Other users may write to the directory that holds the destination. So every file is opened below the handle of the partial
directory, never through a link, and a file that another user may have written is not used. Resumed tensors are hashed again
first.
"""

import contextlib
import itertools
import os
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lt_convert.engine import remote_writer
from lt_convert.engine.journal import JOURNAL, Journal, open_output
from lt_convert.engine.ledger import STATE
from lt_convert.engine.occupancy import check_replaceable
from lt_convert.engine.pieces import PieceChecksums, contents, piece_of, small_content
from lt_convert.engine.preallocation import preallocate
from lt_convert.engine.write_back import WriteBack
from lt_convert.tensors.blocks import TensorReader
from lt_convert.tensors.checksums import Checksums, Piece, new_hash
from lt_convert.tensors.output_files import OutputFile, Payload, Segment, size_of, views
from lt_convert.tensors.source_files import Files, Reader
from lt_shared.console import BadData, CannotCreate, IoFailure, Progress, note
from lt_shared.files import storage
from lt_shared.files.local_files import PartialDirectory, writing

THREADS = min(4, os.cpu_count() or 1)
# The write-back of as many bytes is started together.
FLUSH_BYTES = 8 << 20
READ_BYTES = 1 << 20
# ext4 and XFS allocate a folio as large as one write. Folios of 1 MiB come from the largest free blocks of memory, which a
# virtual machine may have given back to its host: a copy of a GB then took up to 1.5 seconds of processor time, 0.5 with these.
WRITE_BYTES = 256 << 10
# Threads count their bytes, and the main thread shows the sum at this interval: waking the main thread for each block made two
# threads wait for the interpreter ten times for each block.
PROGRESS_SECONDS = 0.2

Pending = tuple[str, int, Segment, Piece | None]
"""A file, an offset in the file, the bytes to write there, and the piece that an earlier run has finished there."""


def write_outputs(
    outputs: Sequence[OutputFile],
    destination: str,
    identity: str,
    replace: bool,
    finish: Callable[[Checksums], bytes],
    source: Reader | None = None,
) -> None:
    """Write `outputs` to `destination`. A killed run with the same `identity` is resumed.

    `finish` makes the content of `Checksums.RECORD` from the checksums; that file is written last. Every byte that is read is
    compared with the checksums of the `source`.

    Raises: CannotCreate for an occupied destination (unless `replace` and it is a checkpoint), TryAgain while another process
    writes it, IoFailure for a full or broken disk, BadData for damaged sources.
    """
    total = sum(output.size_bytes for output in outputs)
    write = remote_writer.write if storage.is_remote(destination) else _write_local
    write(outputs, destination, identity, replace, finish, total, source or Reader())


def _write_local(
    outputs: Sequence[OutputFile],
    destination: str,
    identity: str,
    replace: bool,
    finish: Callable[[Checksums], bytes],
    total: int,
    source: Reader,
) -> None:
    if replace:
        check_replaceable(destination)
    with contextlib.ExitStack() as stack:
        with storage.publish_directory(destination, replace, resume=True) as directory:
            handle = os.dup(directory.descriptor)
            stack.callback(os.close, handle)
            _check_no_parts(directory, destination)
            journal = Journal.open(directory, identity)
            check_space(directory, total, journal)
            large = [output for output in outputs if output.has_tensors]
            for output in large:
                open_output(directory, output.name, output.size_bytes)
            finished = journal.finished
            by_file: list[list[Pending]] = [
                [(output.name, offset, segment, finished.get((output.name, offset))) for offset, segment in output.segments_at()]
                for output in large
            ]
            try:
                write_pending(by_file, journal, destination, total, source)
                source.finish(views(outputs))
            except BadData:
                # Resuming would fail again: the source is damaged.
                directory.empty()
                raise
            write_small_files(directory, outputs, journal.finished, finish)
            if replace:
                # Somebody may have put a file there in the meantime.
                check_replaceable(destination)
        # Deleted after the rename, so that a kill just before it loses nothing.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(JOURNAL, dir_fd=handle)


def _check_no_parts(directory: PartialDirectory, destination: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.stat(STATE, dir_fd=directory.descriptor, follow_symlinks=False)
        raise CannotCreate(
            f"{destination}: {directory.path} is of a conversion in parts, which has not finished",
            f"run its parts again with --shard, or begin anew: rm -r {directory.path}",
        )


def write_pending(by_file: Sequence[Sequence[Pending]], journal: Journal, destination: str, total: int, source: Reader) -> None:
    """Write the segments that are not in the journal, and record them there. `total` is for messages."""
    done_bytes = sum(piece.length for piece in journal.finished.values())
    segment_bytes = sum(size_of(segment) for entries in by_file for _, _, segment, _ in entries)
    if journal.finished:
        note(f"{destination}: resumes after {done_bytes / 1e9:.2f} of {total / 1e9:.2f} GB")
    # One file after the other, because threads that write to one file wait for each other.
    in_turns = (entry for turn in itertools.zip_longest(*by_file) for entry in turn if entry is not None)
    try:
        with (
            Progress("convert", segment_bytes, "B", done=done_bytes) as progress,
            _Workers(journal.directory, in_turns, source) as workers,
        ):
            for piece in workers.finished(progress.advance):
                if journal.finished.get((piece.file, piece.offset)) != piece:
                    journal.add(piece)
    except BaseException:
        with contextlib.suppress(OSError, IoFailure):
            journal.sync()
        raise
    journal.sync()


def write_small_files(
    directory: PartialDirectory,
    outputs: Sequence[OutputFile],
    pieces: dict[tuple[str, int], Piece],
    finish: Callable[[Checksums], bytes],
) -> None:
    """Write the files that make the directory a checkpoint, after all tensors, and last the record with the `pieces`."""
    for output in outputs:
        if not output.has_tensors:
            content = small_content(output, pieces.values())
            _write_small(directory, output.name, content)
            pieces[output.name, 0] = piece_of(output.name, content)
    checksums = Checksums.of([(output.name, output.size_bytes) for output in outputs], pieces.values())
    _write_small(directory, Checksums.RECORD, finish(checksums))


def _write_small(directory: PartialDirectory, name: str, content: bytes) -> None:
    with writing(f"{directory.path}/{name}"):
        # One that a killed run left is made anew.
        with contextlib.suppress(FileNotFoundError):
            directory.unlink(name)
        with open(directory.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(content)


def check_space(directory: PartialDirectory, total: int, journal: Journal) -> None:
    """Raise IoFailure if the disk has less room than the bytes of `total` that the journal does not have."""
    needed_bytes = total - sum(piece.length for piece in journal.finished.values())
    status = os.statvfs(directory.descriptor)
    free = status.f_bavail * status.f_frsize
    if needed_bytes > free:
        place = directory.path.parent
        raise IoFailure(f"{place}: needs {needed_bytes / 1e6:,.1f} MB more, has {free / 1e6:,.1f} MB free", "make room there")


class _Workers:
    """Threads that write segments. An error in one stops all; the end of the `with` block waits for them."""

    def __init__(self, directory: PartialDirectory, work: Iterable[Pending], source: Reader):
        self.directory = directory
        self._source = source
        self._work: queue.SimpleQueue[Pending] = queue.SimpleQueue()
        self._left = 0
        for entry in work:
            self._work.put(entry)
            self._left += 1
        self._results: queue.SimpleQueue[Piece | BaseException] = queue.SimpleQueue()
        self._written_bytes = [0] * THREADS
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(THREADS)]
        self._write_back = WriteBack(directory)

    def __enter__(self) -> "_Workers":
        for thread in self._threads:
            thread.start()
        self._write_back.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._write_back.stop()

    def finished(self, advance: Callable[[int], None]) -> Iterable[Piece]:
        """Yield every piece when it is finished; `advance` is called with the number of bytes written since the last call."""
        shown = 0
        while self._left:
            try:
                result = self._results.get(timeout=PROGRESS_SECONDS)
            except queue.Empty:
                result = None
            written = sum(self._written_bytes)
            advance(written - shown)
            shown = written
            if isinstance(result, BaseException):
                raise result
            if result is not None:
                self._left -= 1
                yield result

    def _run(self, number: int) -> None:
        try:
            with Files(self._source) as files:
                blocks = TensorReader(files)
                while not self._stop.is_set():
                    name, offset, segment, piece = self._work.get_nowait()
                    if piece is not None and self._is_as_written(piece):
                        self._results.put(piece)
                    else:
                        self._results.put(self._write(name, offset, segment, blocks, number))
        except queue.Empty:
            pass
        except BaseException as error:
            self._results.put(error)

    def _is_as_written(self, piece: Piece) -> bool:
        """Whether what an earlier run wrote is still there: a disk that failed may have taken the process with it."""
        hasher, position, end = new_hash(piece.digest), piece.offset, piece.offset + piece.length
        descriptor = self.directory.open(piece.file, os.O_RDONLY)
        try:
            while position < end and not self._stop.is_set():
                data = os.pread(descriptor, min(READ_BYTES, end - position), position)
                if not data:
                    break
                hasher.update(data)
                position += len(data)
            same = hasher.hexdigest() == piece.digest
            if not same:
                # NFS sends a changed page whole if it is in the cache, and another part may have changed its other bytes since.
                os.posix_fadvise(descriptor, piece.offset, piece.length, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
        if not same and not self._stop.is_set():
            note(f"{self.directory.path}/{piece.file}: changed since it was written: bytes {piece.offset:,} to {end:,} again")
        return same

    def _write(self, name: str, offset: int, segment: Segment, blocks: TensorReader, number: int) -> Piece:
        assert isinstance(segment, bytes | Payload)
        checksums = PieceChecksums()
        position = flushed = offset
        descriptor = self.directory.open(name, os.O_WRONLY)
        try:
            preallocate(descriptor, offset, size_of(segment))
            for data in contents(segment, blocks):
                if self._stop.is_set():
                    break
                checksums.update(data)
                written = 0
                with writing(f"{self.directory.path}/{name}"):
                    while written < len(data):
                        begin = position + written
                        # A folio begins at a multiple of its size.
                        end = written + WRITE_BYTES - begin % WRITE_BYTES
                        written += os.pwrite(descriptor, data[written:end], begin)
                position += written
                self._written_bytes[number] += written
                if position - flushed >= FLUSH_BYTES:
                    self._write_back.add(name, flushed, position - flushed)
                    flushed = position
        finally:
            os.close(descriptor)
        return checksums.piece(name, offset, position - offset, segment)
