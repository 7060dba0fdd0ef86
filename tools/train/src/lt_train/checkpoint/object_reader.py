"""Read the objects and tensors of a torch_dist checkpoint without torch's unpickler, and check that they are undamaged.

torch's checkpoint reader unpickles `.metadata`, and each object with `torch.load`, which calls whatever a pickle names.
A check beforehand is no remedy: a zip archive can be made so that Python's reader finds one `data.pkl` and torch's another, and
a file can change between check and use. Within `known_objects_only` all go through this module instead: one reader of the
archive, and `lt_shared.pickles.load_known`, which looks up the names of `pickle_allowlist` only. `common.pt` goes to torch's own
restricted unpickler (`weights_only=True`), if its archive has one reading.

What is read is compared with `checksums.json`; where a checkpoint has none, with the CRC-32 that torch stores for each member of
an archive (0 is none). Large tensors that are needed whole are read to where they belong (`tensor_reader.py`). Of another,
as a rank of another layout needs its rows, the buffer into which it was read is the tensor, and then that of the next one.
"""

import argparse
import contextlib
import dataclasses
import io
import os
import pickle
import threading
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorProperties
from torch.distributed.checkpoint.planner import LoadItemType

from lt_shared import pickles
from lt_shared.console import BadData
from lt_shared.contracts import checkpoint_layout
from lt_shared.files import checksums, ownership
from lt_shared.files.checksums import DAMAGED, MISMATCHED, FileChecksums
from lt_train.checkpoint.archive_reader import BytesFile, Members, read_object
from lt_train.checkpoint.pickle_allowlist import INDEX_NAMES
from lt_train.checkpoint.shards.replica_reads import Replicas
from lt_train.checkpoint.shards.stored_shards import Objects, OpenShard, Place, StoredShards, Take
from lt_train.checkpoint.tensor_reader import LEAST_BYTES, TensorReader, naming
from lt_train.megatron import dcp_filesystem, dist_checkpointing_serialization, torch_serialization
from lt_train.process.interruption import Echo
from lt_train.process.start_clock import clock

INDEX = ".metadata"
# One reader at a time leaves a disk idle while it computes checksums and the kernel clears the pages of the buffer.
PIECE_BYTES, READERS = 16 << 20, 4
_lock = threading.Lock()


@contextlib.contextmanager
def known_objects_only(directory: Path | None = None, verify: bool = True, replicas: Replicas | None = None) -> Iterator[None]:
    """Within, torch's checkpoint readers in this process get what they read from this module.

    With `verify` it is compared with the checksums in `directory`, or with those in the archives. From a store the ranks of
    `replicas` read together, and all of them call it. Raises what this rank has met with, which torch wraps with those of others.
    """
    recorded = FileChecksums.read(directory) if directory and verify else None
    stored = StoredShards.of(directory) if directory else None
    if directory:
        # torch's reader does not say why it cannot be read.
        (directory / INDEX).open("rb").close()
    torch_load = torch.load

    def load(file: Any, weights_only: bool | None) -> Any:
        if isinstance(file, _Slice) or weights_only is False:
            # What is recorded of a slice was compared when it was read.
            return read_object(file, verify and not (recorded and isinstance(file, _Slice)))
        # Only common.pt, which launch has compared with what is recorded of it.
        return _read_common(file, torch_load, verify and recorded is None)

    # In another layout a rank has several parts of what was one object, mostly one after the other: it is read once.
    last: dict[tuple[str, int], _Slice] = {}
    memory = _Memory()

    def read_slice(reader: Any, file: IO[bytes], info: Any) -> _Slice:
        place = (str(info.relative_path), int(info.offset))
        last_read = last.get(place)
        if last_read is None:
            last.clear()
            last_read = last[place] = _Slice(file, info.offset, info.length, str(info.relative_path), recorded, memory)
        last_read.seek(0)
        return last_read

    with (
        _lock,
        torch_serialization.loading_by(load),
        dcp_filesystem.reading_by(read_index, read_slice, _in_order(stored, recorded, verify, replicas)),
        dist_checkpointing_serialization.loading_common_by(_load_common),
    ):
        try:
            yield
        except CheckpointException as error:
            raise _cause(error) from error


def _cause(error: CheckpointException) -> BaseException:
    """Of the failures of all ranks, this one's; where only others have failed, an Echo, so that the message names their node.

    megatron-core 0.19 loads each rank for itself, as if it was rank 0: what was raised here has a traceback.
    """
    causes = {rank: cause for rank, (cause, _) in error.failures.items()}
    this = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    local_causes = [cause for rank, cause in causes.items() if rank == this or cause.__traceback__]
    echoes = [Echo(str(cause)) for cause in causes.values() if not isinstance(cause, Echo)]
    return next(iter([*local_causes, *echoes]), error)


def _in_order(
    stored: StoredShards | None, recorded: FileChecksums | None, verify: bool, replicas: Replicas | None
) -> Callable[[Any, Any, Any], Any]:
    """torch's `read_data`, to which is left what is no large tensor that is needed whole; in the order of the files.

    From a store all comes in its order, ahead: first what `replicas` read together, then what this rank alone needs.
    """
    read_data = FileSystemReader.read_data

    def read(reader: Any, plan: Any, planner: Any) -> Any:
        def place(item: Any) -> Place:
            return _place(reader.storage_data[item.storage_index])

        items = sorted(plan.items, key=place)
        if stored is None:
            with clock.beside("reading of tensors"), TensorReader(Path(reader.path), recorded, verify) as tensors:
                targets = [_begun(tensors, place(item), item, reader, planner) for item in items]
                remaining_items = [item for item, target in zip(items, targets, strict=True) if target is None]
                future = read_data(reader, dataclasses.replace(plan, items=remaining_items), planner)
                tensors.wait()
            for item, target in zip(items, targets, strict=True):
                if target is not None:
                    planner.commit_tensor(item, target)
            return future

        def read_part(chosen: Callable[[Place], bool], take: Take) -> Any:
            with _opening(reader.fs, stored, take):
                part = [item for item in items if chosen(place(item))]
                return read_data(reader, dataclasses.replace(plan, items=part), planner)

        stored_places = [candidate for candidate in map(place, items) if candidate.shard in stored.shards]
        all_places = {_place(info) for info in reader.storage_data.values()}
        exchanges = replicas.exchanges(stored, all_places, stored_places) if replicas else []
        with contextlib.ExitStack() as failing:
            for exchange in reversed(exchanges):
                failing.callback(exchange.give_up)
            for exchange in exchanges:
                with Objects(stored, exchange.own) as objects:
                    read_part(set(exchange.places).__contains__, partial(exchange.take, read=objects.take))
                    exchange.finish(objects.take)
            shared = {candidate for exchange in exchanges for candidate in exchange.places}
            with Objects(stored, [candidate for candidate in stored_places if candidate not in shared]) as objects:
                return read_part(lambda candidate: candidate not in shared, objects.take)

    return read


def _place(info: Any) -> Place:
    return Place(str(info.relative_path), int(info.offset), int(info.length))


def _opening(filesystem: Any, stored: StoredShards, take: Take) -> contextlib.AbstractContextManager[None]:
    """Within, the shards on the store are opened as files whose objects `take` gives."""
    create_stream = filesystem.create_stream

    def opened(path: Any, mode: str) -> Any:
        name = os.path.basename(path)
        return OpenShard(name, stored.url, take) if name in stored.shards else create_stream(path, mode)

    return dcp_filesystem.opening_by(filesystem, opened)


def _begun(tensors: TensorReader, place: Place, item: Any, reader: Any, planner: Any) -> torch.Tensor | None:
    """The tensor into which `tensors` now reads the object; None where that does not fit."""
    transforms = getattr(reader.storage_data[item.storage_index], "transform_descriptors", None)
    is_small = item.type == LoadItemType.BYTE_IO or place.size_bytes < LEAST_BYTES
    if is_small or transforms or any(item.storage_offsets):
        return None
    # Others may be quantized, and are given by `resolve_tensor` in another form.
    if type(planner.lookup_tensor(item.dest_index)) not in (torch.Tensor, torch.nn.Parameter):
        return None
    target = planner.resolve_tensor(item).detach()
    return target if tensors.begin(place, target) else None


class _Memory:
    """What objects are read into, one after the other: the kernel clears pages that are new."""

    def __init__(self) -> None:
        self.buffer = np.empty(0, np.uint8)

    def of(self, size_bytes: int) -> memoryview:
        """Until it is called again."""
        if len(self.buffer) < size_bytes:
            self.buffer = np.empty(size_bytes, np.uint8)
        return self.buffer[:size_bytes].data


class _Slice(BytesFile):
    """An object of a shard, read into memory and compared with the recorded checksums."""

    def __init__(
        self, file: Any, offset: int, size_bytes: int, name: str, recorded: FileChecksums | None, memory: "_Memory | None" = None
    ):
        is_stored = isinstance(file, OpenShard)
        content = file.content(offset, size_bytes) if is_stored else (memory or _Memory()).of(size_bytes)
        origin = str(getattr(file, "name", name))
        if not is_stored:
            file.seek(offset)
        ranges = recorded.within(name, offset, size_bytes) if recorded else [(offset, size_bytes, None)]
        if sum(size for _, size, _ in ranges) != size_bytes:
            raise BadData(f"{origin}: {FileChecksums.NAME} has no checksum of the object at {offset}", MISMATCHED)
        for start, size, crc in ranges:
            part = content[start - offset : start - offset + size]
            object_read = _read(file, part, origin, crc is not None)
            if crc is not None and object_read != crc:
                reason = f"the checksum of {size} bytes at {start} is another than {FileChecksums.NAME} says"
                raise BadData(f"{origin}: {reason}", MISMATCHED)
        super().__init__(content, f"{origin}, object at {offset}")


def _read(file: Any, content: memoryview, origin: str, verify: bool) -> int:
    """Fill `content` from an open file; with `verify` returns the CRC-32. A large object is read in several pieces at a time.

    What came from a store is in it already.
    """
    if isinstance(file, OpenShard):
        return checksums.crc32(content) if verify else 0
    pieces = range(0, len(content), PIECE_BYTES)
    if len(pieces) == 1 or not isinstance(file, io.BufferedReader):
        return _read_piece(file, content, origin, verify)
    begin = file.tell()

    def read_piece(start: int) -> tuple[int, int]:
        piece = content[start : start + PIECE_BYTES]
        return _read_piece(_Placed(file.fileno(), begin + start), piece, origin, verify), len(piece)

    with ThreadPoolExecutor(READERS) as pool:
        checksum = checksums.joined_all(pool.map(read_piece, pieces))
    file.seek(begin + len(content))
    return checksum


class _Placed:
    """A place in an open file, of which others read other places."""

    def __init__(self, descriptor: int, position: int):
        self.descriptor, self.position = descriptor, position

    def readinto(self, buffer: memoryview) -> int:
        count = os.preadv(self.descriptor, [buffer], self.position)
        self.position += count
        return count

    def tell(self) -> int:
        return self.position


def _read_piece(file: Any, content: memoryview, origin: str, verify: bool) -> int:
    """The CRC-32 is that of each block while it is in cache."""
    checksum = filled = 0
    while filled < len(content):
        with naming(origin):
            count = file.readinto(content[filled : filled + checksums.BLOCK_BYTES])
        if not count:
            raise BadData(f"{origin}: ends at {file.tell()} bytes, {file.tell() + len(content) - filled} are needed", DAMAGED)
        if verify:
            checksum = checksums.crc32(content[filled : filled + count], checksum)
        filled += count
    return checksum


class _TensorProperties(TensorProperties):
    """Without the strides that torch writes since 2.15, and which are those of contiguous tensors in what Megatron saves.

    Earlier versions of torch cannot read them, and megatron-core, to 0.19.2 at least, passes all of these to `torch.empty`.
    """

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state[:5])  # type: ignore[no-untyped-call]
        vars(self).pop("strides", None)
        self.__class__ = TensorProperties  # type: ignore[assignment]


_INDEX_STAND_INS = {f"{TensorProperties.__module__}.{TensorProperties.__qualname__}": _TensorProperties}


def read_index(file: IO[bytes]) -> Any:
    """The `Metadata` in an open `.metadata` file. Raises BadData for a pickle that names anything else."""
    origin = str(getattr(file, "name", INDEX))
    index = pickles.load_known(file.read(), INDEX_NAMES, origin, stand_ins=_INDEX_STAND_INS)
    for stored in getattr(index, "storage_data", {}).values():
        checkpoint_layout.check_shard_name(stored.relative_path, origin)
    return index


def _read_common(file: Any, torch_load: Callable[..., Any], verify: bool) -> dict[str, Any]:
    """The content of a `common.pt`, read by torch's own restricted unpickler after a look at the archive. Raises BadData."""
    origin = os.fspath(file)
    try:
        with open(file, "rb", opener=ownership.open_checked) as opened:
            content = memoryview(opened.read())
    except FileNotFoundError:
        advice = "install the megatron-core that saved it: 0.19, for which Python 3.12 is needed, stores its content elsewhere"
        raise BadData(f"{origin}: missing", advice) from None
    if content[: len(pickles.ARCHIVE)] != pickles.ARCHIVE:
        raise BadData(f"{origin}: not a torch file", "do not load it: it may run code")
    try:
        with zipfile.ZipFile(BytesFile(content, origin)) as archive:
            pickles.pickle_member(archive, origin)
            members = Members(archive, content, verify)
            for name in archive.namelist():
                members.read(name)
        common = torch_load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (*pickles.NOT_AN_ARCHIVE, pickle.UnpicklingError, RuntimeError, EOFError, ValueError, TypeError) as error:
        raise BadData(f"{origin}: damaged: {_reason(error)}", DAMAGED) from None
    return _common_state(common, origin)


def _load_common(load_common: Callable[[Any], Any], directory: Any) -> dict[str, Any]:
    """By megatron-core's function, for a state that 0.19 has among the tensors, in a list. Raises BadData for another."""
    origin = f"{directory}: the state beside the tensors"
    try:
        return _common_state(load_common(directory), origin)
    except (IndexError, KeyError, TypeError):
        raise BadData(f"{origin}: not what Megatron writes", DAMAGED) from None


def _common_state(common: Any, origin: str) -> dict[str, Any]:
    if not isinstance(common, dict) or not isinstance(common.get("args", argparse.Namespace()), argparse.Namespace):
        raise BadData(f"{origin}: not what Megatron writes", DAMAGED)
    return common


def _reason(error: Exception) -> str:
    """In one line; torch begins with advice to let the pickle run what it names."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return next((line for line in lines if "GLOBAL" in line), lines[0])[:200]
