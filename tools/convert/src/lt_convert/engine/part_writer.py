"""Write one part of a conversion that several processes share, on one node or many, and publish the result after the last part.

All parts write to one partial directory: whole files, and ranges of files at a cut (`division`). Each resumes from a journal of
its own. The part that finishes last, by the `ledger`, joins the journals, hashes the tensors that a cut has divided, writes the
files without tensors and the record, and renames the directory. If it is killed in between, it publishes when it is repeated.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence

from lt_convert.engine.division import Entry, divide
from lt_convert.engine.journal import Journal, open_output, read_pieces, reason_for_distrust
from lt_convert.engine.ledger import FINISHED, STARTED, STATE, Ledger, Terms, abbreviated, describe
from lt_convert.engine.occupancy import check_replaceable
from lt_convert.engine.output_writer import READ_BYTES, Pending, check_space, write_pending, write_small_files
from lt_convert.tensors.checksums import Checksums, Piece, new_hash
from lt_convert.tensors.output_files import OutputFile, size_of, views_of_segments
from lt_convert.tensors.source_files import Interval, Reader
from lt_shared.console import BadData, CannotCreate, TryAgain, note
from lt_shared.console.shard_option import Slice
from lt_shared.files import shared_directory
from lt_shared.files.checksums import joined_all
from lt_shared.files.local_files import PartialDirectory, writing

Pieces = dict[tuple[str, int], Piece]


def write_part(
    outputs: Sequence[OutputFile],
    destination: str,
    part: Slice,
    terms: Terms,
    replace: bool,
    finish: Callable[[Checksums], bytes],
    source: Reader,
    is_published: Callable[[], bool],
) -> bool:
    """Write a part of `outputs`; return whether it was the last, so that the result is at `destination`.

    A killed part with the same terms is resumed. `finish` is as for `write_outputs`. `is_published` tells whether the other parts
    have published the result since this part was planned.

    Raises: CannotCreate for an occupied destination and for parts that began with other terms, TryAgain if another process writes
    this part, IoFailure for a full or broken disk, BadData for damaged sources.
    """
    if replace:
        check_replaceable(destination)
    division = divide(outputs, part.count)
    with shared_directory.shared_directory(destination) as directory:
        reason = reason_for_distrust(directory)
        if reason is not None:
            raise CannotCreate(f"{destination}: {directory.path}/{reason}", f"begin anew: rm -r {directory.path}")
        try:
            ledger = Ledger.open(directory, part, terms, destination)
        except FileNotFoundError:
            return _published_meanwhile(is_published, directory, destination)
        if ledger.is_new and is_published():
            shutil.rmtree(directory.path, ignore_errors=True)
            return True
        with contextlib.ExitStack() as stack:
            try:
                with ledger.locked() as descriptor:
                    _check_in_place(directory)
                    # Nobody publishes while this part is noted as started, also if it had finished before.
                    stack.enter_context(ledger.held())
                    ledger.note(descriptor, STARTED)
            except FileNotFoundError:
                return _published_meanwhile(is_published, directory, destination)
            journal = Journal.open_beside_others(directory, terms.identity, ledger.journal(part.index))
            _write_entries(division, part, journal, destination, source, ledger)
            with ledger.locked() as descriptor:
                ledger.note(descriptor, FINISHED)
                unfinished = describe(ledger.lines(descriptor))
                if unfinished:
                    note(
                        f"{destination}: part {part.index} of {part.count} has finished; not finished: {abbreviated(unfinished)}"
                    )
                    return False
                pieces = _joined(outputs, division, directory, ledger, terms.identity)
                source.join(_read_intervals(directory, ledger))
                write_small_files(directory, outputs, pieces, finish)
                ledger.tidy()
                if replace:
                    check_replaceable(destination)
                shared_directory.publish_shared(directory, destination, replace)
        # Deleted after the rename, so that a kill just before it loses nothing.
        shutil.rmtree(STATE, ignore_errors=True, dir_fd=directory.descriptor)
    return True


def _check_in_place(directory: PartialDirectory) -> None:
    """Raise FileNotFoundError if the directory was published, or removed."""
    if shared_directory.is_published(directory):
        raise FileNotFoundError(directory.path)


def _published_meanwhile(is_published: Callable[[], bool], directory: PartialDirectory, destination: str) -> bool:
    if is_published():
        return True
    raise TryAgain(f"{destination}: {directory.path} was removed", "run the command again")


def _write_entries(
    division: Sequence[Sequence[Entry]],
    part: Slice,
    journal: Journal,
    destination: str,
    source: Reader,
    ledger: Ledger,
) -> None:
    entries, directory = division[part.index], journal.directory
    total = sum(size_of(entry.segment) for entry in entries)
    check_space(directory, total, journal)
    sizes = _file_sizes(division)
    for name in dict.fromkeys(entry.name for entry in entries):
        open_output(directory, name, sizes[name])
    by_file: dict[str, list[Pending]] = {}
    for entry in entries:
        piece = journal.finished.get((entry.name, entry.offset))
        if piece is not None and piece.length != size_of(entry.segment):
            piece = None
        by_file.setdefault(entry.name, []).append((entry.name, entry.offset, entry.segment, piece))
    write_pending(list(by_file.values()), journal, destination, total, source)
    name = ledger.intervals(part.index)
    if _exists(directory, name):
        # An earlier process has written this part to its end, and has checked the source.
        return
    other_entries = [entry for number, others in enumerate(division) if number != part.index for entry in others]
    read = source.finish(_views(entries), _views(other_entries), (part.index, part.count))
    with writing(f"{directory.path}/{name}"):
        with open(directory.open(f"{name}.new", os.O_WRONLY | os.O_CREAT), "wb") as file:
            file.truncate()
            file.write(json.dumps(read).encode())
            file.flush()
            os.fsync(file.fileno())
        os.rename(f"{name}.new", name, src_dir_fd=directory.descriptor, dst_dir_fd=directory.descriptor)


def _exists(directory: PartialDirectory, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory.descriptor, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _views(entries: Sequence[Entry]) -> list[tuple[str, int, int]]:
    return list(views_of_segments(entry.segment for entry in entries))


def _file_sizes(division: Sequence[Sequence[Entry]]) -> Mapping[str, int]:
    sizes: dict[str, int] = {}
    for entries in division:
        for entry in entries:
            sizes[entry.name] = max(sizes.get(entry.name, 0), entry.offset + size_of(entry.segment))
    return sizes


def _joined(
    outputs: Sequence[OutputFile],
    division: Sequence[Sequence[Entry]],
    directory: PartialDirectory,
    ledger: Ledger,
    identity: str,
) -> Pieces:
    """Join the journals. The tensors that a cut has divided are read again, for a checksum of the whole tensor."""
    written: Pieces = {}
    for number, entries in enumerate(division):
        pieces = read_pieces(directory, ledger.journal(number), identity) or {}
        for entry in entries:
            piece = pieces.get((entry.name, entry.offset))
            if piece is None or piece.length != size_of(entry.segment):
                raise TryAgain(
                    f"{directory.path}/{ledger.journal(number)}: not complete, although part {number} has finished",
                    f"repeat it: --shard {number}/{len(division)}",
                )
            written[entry.name, entry.offset] = piece
    whole: Pieces = {}
    for output in outputs:
        for offset, segment in output.segments_at() if output.has_tensors else ():
            length = size_of(segment)
            piece = written[output.name, offset]
            if piece.length < length:
                pieces_of_tensor = []
                while offset + length > (end := piece.offset + piece.length):
                    pieces_of_tensor.append(piece)
                    piece = written[output.name, end]
                piece = _whole(directory, [*pieces_of_tensor, piece])
            whole[output.name, offset] = piece
    return whole


def _whole(directory: PartialDirectory, pieces: Sequence[Piece]) -> Piece:
    """Join consecutive pieces of a tensor. Raises BadData if the file does not have what their parts have written."""
    first, length = pieces[0], sum(piece.length for piece in pieces)
    whole_hash = new_hash()
    descriptor = directory.open(first.file, os.O_RDONLY)
    try:
        for piece in pieces:
            piece_hash = new_hash(piece.digest)
            position, end = piece.offset, piece.offset + piece.length
            while position < end and (data := os.pread(descriptor, min(READ_BYTES, end - position), position)):
                whole_hash.update(data)
                piece_hash.update(data)
                position += len(data)
            if piece_hash.hexdigest() != piece.digest:
                raise BadData(
                    f"{directory.path}/{first.file}: bytes {piece.offset:,} to {end:,} are not as their part has written them",
                    "repeat all parts: each writes again what has changed",
                )
    finally:
        os.close(descriptor)
    crc32 = joined_all((piece.crc32 or 0, piece.length) for piece in pieces)
    return Piece(first.file, first.offset, length, whole_hash.hexdigest(), first.tensor, crc32)


def _read_intervals(directory: PartialDirectory, ledger: Ledger) -> list[Interval]:
    intervals: list[Interval] = []
    for number in range(ledger.part.count):
        with open(directory.open(ledger.intervals(number), os.O_RDONLY), "rb") as file:
            intervals += [(str(path), int(begin), int(end), int(crc32)) for path, begin, end, crc32 in json.loads(file.read())]
    return intervals
