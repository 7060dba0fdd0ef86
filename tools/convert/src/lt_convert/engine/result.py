"""The result of a conversion or a merge: compare it with the request, check the destination, and write it.

An existing result is recognised by the content of `lt-convert.json`: the options, and the path, size and modification time of
every source file.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from lt_convert.engine import ledger, occupancy, part_writer
from lt_convert.engine.journal import JOURNAL
from lt_convert.engine.ledger import STATE, Terms
from lt_convert.engine.output_writer import write_outputs
from lt_convert.engine.receipt import ConversionRecord
from lt_convert.formats import FORMATS, beside_model, directories
from lt_convert.formats.megatron import provider_config
from lt_convert.tensors.checksums import Checksums
from lt_convert.tensors.output_files import OutputFile
from lt_convert.tensors.source_files import Reader
from lt_shared import version_of
from lt_shared.console import CannotCreate, UsageError, note
from lt_shared.console.shard_option import Slice
from lt_shared.contracts import checkpoint_layout
from lt_shared.contracts.manifest import Checkpoint, absolute
from lt_shared.files import leftovers, ownership, storage
from lt_shared.files.local_files import partial_path

Fingerprint = list[dict[str, str | int]]


class Planned(Protocol):
    """What `write` needs of a plan."""

    @property
    def files(self) -> Sequence[OutputFile]: ...

    def to_record(self) -> dict[str, Any]: ...


@dataclasses.dataclass(frozen=True)
class Result:
    """A result in the format `to` at the normalized `destination`, made with `options` of sources with this `fingerprint`.

    `force` says whether a checkpoint that is there is replaced.
    """

    to: str
    destination: str
    force: bool
    options: Mapping[str, Any]
    fingerprint: Fingerprint

    def finished(self) -> Checkpoint | None:
        """The checkpoint, if it is at the destination already and nobody else can have changed it."""
        record = ConversionRecord.read(self.destination)
        if not record or self.force or not record.is_up_to_date(dict(self.options), self.fingerprint, self.destination):
            return None
        occupancy.check_own(self.destination, record.files.sizes)
        _remove_leftovers(self.destination, self.options)
        note(f"{self.destination}: up to date")
        return self.checkpoint(list(record.files.sizes), record.iteration, record.loss)

    def check_unoccupied(self) -> None:
        """Raises CannotCreate for an occupied local destination, before the source is read; others need the journal."""
        if storage.is_remote(self.destination):
            return
        if self.force:
            occupancy.check_replaceable(self.destination)
        path = Path(self.destination)
        if path.exists() and not path.is_dir():
            raise CannotCreate(f"{self.destination}: exists and is not a directory")
        if not self.force and path.is_dir() and any(path.iterdir()):
            raise occupancy.occupied(self.destination)

    def write(
        self, plan: Planned, reader: Reader, iteration: int | None, loss: float | None, tokenizer_file: str | None
    ) -> Checkpoint:
        """Write the planned files, and last the record of their sources. Raises as `write_outputs`."""
        finish = self._finish(iteration, loss, tokenizer_file)
        write_outputs(plan.files, self.destination, self._identity(plan), self.force, finish, reader)
        return self.checkpoint([file.name for file in plan.files], iteration, loss)

    def write_part(
        self,
        plan: Planned,
        reader: Reader,
        iteration: int | None,
        loss: float | None,
        tokenizer_file: str | None,
        part: Slice,
        before: tuple[int, int] | None,
    ) -> Checkpoint | None:
        """Write a part of the planned files, and after the last part the record of their sources. Raises as the writer of parts.

        `before` is the identity of the destination at the start. Returns the checkpoint, or None while other parts have not
        finished.
        """
        source = hashlib.sha256(json.dumps(self.fingerprint).encode()).hexdigest()
        terms = Terms(version_of("lt-convert"), dict(self.options), source, self._identity(plan))
        finish = self._finish(iteration, loss, tokenizer_file)

        def is_published() -> bool:
            record = ConversionRecord.read(self.destination) if identity_of(self.destination) != before else None
            return record is not None and record.is_up_to_date(dict(self.options), self.fingerprint, self.destination)

        if not part_writer.write_part(plan.files, self.destination, part, terms, self.force, finish, reader, is_published):
            return None
        return self.checkpoint([file.name for file in plan.files], iteration, loss)

    def _identity(self, plan: Planned) -> str:
        content = [version_of("lt-convert"), dict(self.options), self.fingerprint, plan.to_record()["tensors"]]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def _finish(self, iteration: int | None, loss: float | None, tokenizer_file: str | None) -> Callable[[Checksums], bytes]:
        """Return the function that makes the record from the checksums of the written files."""
        record = ConversionRecord(
            options=dict(self.options),
            source=self.fingerprint,
            files=Checksums({}, {}),
            tokenizer_file=tokenizer_file,
            iteration=iteration,
            loss=loss,
        )
        return lambda checksums: dataclasses.replace(record, files=checksums).to_bytes()

    def checkpoint(self, names: Sequence[str], iteration: int | None, loss: float | None) -> Checkpoint:
        if FORMATS[self.to].is_in_run:
            if any(name.startswith(f"{checkpoint_layout.RELEASE}/") for name in names):
                return Checkpoint(absolute(f"{self.destination}/{checkpoint_layout.RELEASE}"), self.to)
            return Checkpoint(absolute(f"{self.destination}/iter_{iteration or 0:07d}"), self.to, iteration, loss)
        return Checkpoint(absolute(self.destination), self.to, iteration, loss)


def identity_of(directory: str) -> tuple[int, int] | None:
    """Return the device and inode of a directory, None if it is missing: another one is there after a publication."""
    try:
        status = os.lstat(directory)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def check_destination(destination: str, source: str) -> None:
    """Raises UsageError for a destination that contains the source or the working directory, which would be deleted."""
    if f"{source}/".startswith(f"{destination}/"):
        raise UsageError(f"{destination}: holds the source {source}", "choose another output")
    if not storage.is_remote(destination) and f"{os.getcwd()}/".startswith(f"{destination.rstrip('/')}/"):
        raise UsageError(f"{destination}: holds the working directory", "choose another output, or start elsewhere")


def fingerprint(directory: str, source_format: str, destination: str) -> Fingerprint:
    """Return size and time (or ETag) of the source's files, which show a change. A destination inside the source is left out."""
    if storage.is_remote(directory):
        return [storage.fingerprint(f"{directory}/{name}", refresh=True) for name in sorted(storage.sizes_below(directory))]
    destination_prefixes = (destination, os.path.join(os.path.dirname(destination), f".{os.path.basename(destination)}."))
    paths = [path for path in Path(directory).rglob("*") if path.is_file() and not str(path).startswith(destination_prefixes)]
    if FORMATS[source_format].is_in_run:
        run = Path(directory).parent
        beside = (checkpoint_layout.tokenizer_directory(run), run / beside_model.DIRECTORY, run / provider_config.CONTEXT)
        paths += [path for place in beside for path in place.rglob("*") if path.is_file()]
    if FORMATS[source_format].has_config_above:
        candidates = directories.configuration_directories(directory)[1:]
        paths += [path for candidate in candidates if (path := Path(candidate) / "config.json").is_file()]
    return [storage.fingerprint(path) for path in sorted(paths)]


def _remove_leftovers(destination: str, options: Mapping[str, Any]) -> None:
    """Delete the remains of a run that was killed in its last deletions: the journal, and the result that was replaced.

    While a partial result is there, the replaced one stays: the process may be about to put it back.
    """
    if storage.is_remote(destination):
        if storage.exists(f"{destination}/{JOURNAL}"):
            storage.remove(f"{destination}/{JOURNAL}")
        return
    path = Path(destination)
    # Where the result belongs to root and cannot be changed, there is nothing to tidy.
    with contextlib.suppress(OSError):
        shutil.rmtree(path / STATE, ignore_errors=True)
        storage.remove(path / JOURNAL)
    replaced = path.parent / f".{path.name}.replaced"
    with contextlib.suppress(OSError):
        is_own = replaced.is_dir() and ownership.belongs_to_other(os.lstat(replaced), path.parent) is None
        if is_own and not replaced.is_symlink() and not os.path.lexists(partial_path(destination)):
            leftovers.remove(replaced)
    ledger.remove_abandoned(destination, options)
