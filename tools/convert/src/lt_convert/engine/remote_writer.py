"""Write a list of `OutputFile` to a remote store, which has no rename: a journal tells complete objects from others.

The journal is an object beside the outputs, written before them: it names all objects that the conversion writes and replaces,
and has the checksums of the finished ones. Without `--force` no object is replaced or deleted that the journal does not name.
"""

import concurrent.futures
import dataclasses
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence

from lt_convert.engine import occupancy
from lt_convert.engine.journal import JOURNAL
from lt_convert.engine.pieces import PieceChecksums, contents, small_content
from lt_convert.tensors.blocks import TensorReader
from lt_convert.tensors.checksums import Checksums, Piece
from lt_convert.tensors.output_files import OutputFile, Summary, size_of, views
from lt_convert.tensors.source_files import Files, Reader
from lt_shared.console import BadData, Progress
from lt_shared.files import storage, strict_json

THREADS = min(4, os.cpu_count() or 1)


def write(
    outputs: Sequence[OutputFile],
    destination: str,
    identity: str,
    replace: bool,
    finish: Callable[[Checksums], bytes],
    total: int,
    source: Reader,
) -> None:
    """Upload the files; those without tensors (index, configuration, tracker) come last, one after the other."""
    journal = RemoteJournal.open(destination, identity, replace, {output.name: output.size_bytes for output in outputs})
    done_bytes = sum(output.size_bytes for output in outputs if output.name in journal.finished)
    pending = [output for output in outputs if output.name not in journal.finished]
    try:
        with Progress("convert", total, "B", done=done_bytes) as progress:
            with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
                uploads = [
                    pool.submit(_upload, output, destination, progress, source) for output in pending if output.has_tensors
                ]
                try:
                    for upload in concurrent.futures.as_completed(uploads):
                        journal.add(upload.result())
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
            source.finish(views(outputs))
            for output in pending:
                if not output.has_tensors:
                    content = small_content(output, journal.pieces())
                    journal.add(_upload(OutputFile(output.name, (content,)), destination, progress, source))
    except BadData:
        # The source is damaged: resuming would fail again.
        journal.withdraw()
        raise
    checksums = Checksums.of([(output.name, output.size_bytes) for output in outputs], journal.pieces())
    storage.write_bytes(f"{destination}/{Checksums.RECORD}", finish(checksums))
    storage.remove(f"{destination}/{JOURNAL}")


def _upload(output: OutputFile, destination: str, progress: Progress, source: Reader) -> list[Piece]:
    pieces = []
    with Files(source) as files, storage.publish(f"{destination}/{output.name}") as file:
        blocks = TensorReader(files)
        for offset, segment in output.segments_at():
            assert not isinstance(segment, Summary)
            checksums = PieceChecksums()
            for data in contents(segment, blocks):
                checksums.update(data)
                file.write(data)
                progress.advance(len(data))
            pieces.append(checksums.piece(output.name, offset, size_of(segment), segment))
    return pieces


@dataclasses.dataclass
class RemoteJournal:
    """The finished files of a plan on a remote store: an object that is rewritten after every file.

    `names` has the objects that the conversion writes, and the older objects that it replaces.
    """

    destination: str
    identity: str
    names: Sequence[str]
    finished: dict[str, list[Piece]]

    @classmethod
    def open(cls, destination: str, identity: str, replace: bool, planned: Mapping[str, int]) -> "RemoteJournal":
        """The journal of an interrupted conversion with this identity, or a new one; `planned` has each file's size in bytes.

        Raises CannotCreate when the destination holds something else and `replace` is not set, or something that is no part of
        a checkpoint.
        """
        existing = storage.sizes_below(destination)
        earlier = cls._read(destination) if JOURNAL in existing else None
        is_unfinished = earlier is not None and Checksums.RECORD not in existing
        if existing and not replace and not is_unfinished:
            raise occupancy.occupied(destination)
        if earlier is not None and is_unfinished and not replace:
            expected = {JOURNAL, *planned, *(name for name in earlier.names if occupancy.looks_like_checkpoint(name))}
            occupancy.check_only(destination, existing, expected)
        elif existing:
            occupancy.check_replaceable(destination, earlier.names if earlier else ())
        resumed = earlier.finished if earlier is not None and is_unfinished and earlier.identity == identity else {}
        finished = {name: pieces for name, pieces in resumed.items() if existing.get(name) == planned.get(name) is not None}
        obsolete = sorted((set(existing) - set(finished) - {JOURNAL}), key=lambda name: name != Checksums.RECORD)
        journal = cls(destination, identity, sorted({*planned, Checksums.RECORD, *obsolete}), finished)
        journal.save()
        # The record goes first: it says that the directory is complete.
        for name in obsolete:
            storage.remove(f"{destination}/{name}")
        return journal

    @classmethod
    def _read(cls, destination: str) -> "RemoteJournal | None":
        try:
            record = strict_json.loads(storage.read_bytes(f"{destination}/{JOURNAL}"))
            finished = {str(name): [Piece(*one) for one in pieces] for name, pieces in record["done"].items()}
            names = [str(name) for name in record.get("names", ())]
            return cls(destination, str(record["identity"]), [*names, *finished], finished)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def pieces(self) -> Collection[Piece]:
        return [piece for pieces in self.finished.values() for piece in pieces]

    def add(self, pieces: list[Piece]) -> None:
        self.finished[pieces[0].file] = pieces
        self.save()

    def save(self) -> None:
        finished = {name: [dataclasses.astuple(one) for one in pieces] for name, pieces in self.finished.items()}
        record = {"identity": self.identity, "names": self.names, "done": finished}
        storage.write_bytes(f"{self.destination}/{JOURNAL}", json.dumps(record).encode())

    def withdraw(self) -> None:
        """Delete the uploaded objects, also what a thread uploads that began before the error, then the journal."""
        for name in set(self.names) & set(storage.sizes_below(self.destination)):
            storage.remove(f"{self.destination}/{name}")
        storage.remove(f"{self.destination}/{JOURNAL}")
