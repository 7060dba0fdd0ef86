"""Read the objects and tensors of a torch_dist checkpoint without torch's unpickler, and verify their checksums.

torch's checkpoint reader unpickles `.metadata`, and each object with `torch.load`, which calls whatever a pickle names.
A check beforehand does not help: a zip archive can show Python's reader one `data.pkl` and torch's reader another, and a file can
change between check and use. Within `known_objects_only`, this module reads everything: with one archive reader and
`lt_shared.pickles.load_known`, which looks up the names in `pickle_allowlist` only. torch's restricted unpickler
(`weights_only=True`) reads `common.pt`, if its archive has one reading.

Objects are compared with `checksums.json`, or without it with the CRC-32 that torch stores for each archive member (0 is none).
Large tensors that are needed whole are read into place (`tensor_reader.py`). A smaller or partial tensor is a view of the read
buffer, which the next object reuses.
"""

import argparse
import contextlib
import dataclasses
import io
import os
import pickle
import struct
import threading
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
from lt_shared.archives.torch_archive import TorchArchive
from lt_shared.console import BadData
from lt_shared.contracts import checkpoint_layout
from lt_shared.files import checksums, ownership
from lt_shared.files.checksums import DAMAGED, MISMATCHED, FileChecksums
from lt_train.checkpoint.archive_reader import BytesFile, read_object
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
# What torch's restricted reader raises for an archive with another content.
_UNREADABLE = (
    pickle.UnpicklingError, RuntimeError, EOFError, LookupError, OverflowError, ValueError, TypeError, struct.error,
)  # fmt: skip
_lock = threading.Lock()


@contextlib.contextmanager
def known_objects_only(directory: Path | None = None, verify: bool = True, replicas: Replicas | None = None) -> Iterator[None]:
    """Within the context, torch's checkpoint readers in this process read through this module.

    With `verify`, objects are compared with the checksums in `directory`, or else in the archives. The ranks of `replicas` read
    from a store together, and all of them call it. Raises this rank's error, which torch wraps together with other ranks' errors.
    """
    recorded = FileChecksums.read(directory) if directory and verify else None
    stored = StoredShards.load(directory) if directory else None
    if directory:
        # Open the index here first, because torch's reader hides the reason of a failure.
        (directory / INDEX).open("rb").close()
    torch_load = torch.load

    def load(file: Any, weights_only: bool | None) -> Any:
        if isinstance(file, _Slice) or weights_only is False:
            # A slice was compared with its recorded checksum when it was read.
            return read_object(file, verify and not (recorded and isinstance(file, _Slice)))
        # This is common.pt only: the launcher has compared it with its recorded checksum.
        return _read_common(file, torch_load, verify and recorded is None)

    # After a change of layout, a rank needs several parts of an object, mostly in succession: read the object once.
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
        torch_serialization.load_by(load),
        dcp_filesystem.read_by(read_index, read_slice, _in_order(stored, recorded, verify, replicas)),
        dist_checkpointing_serialization.load_common_by(_load_common),
    ):
        try:
            yield
        except CheckpointException as error:
            raise _cause(error) from error


def _cause(error: CheckpointException) -> BaseException:
    """Return this rank's error. If only other ranks have failed, return an Echo, so that the message names their node.

    megatron-core 0.19 loads on each rank as if it was rank 0: an error that was raised here has a traceback.
    """
    causes = {rank: cause for rank, (cause, _) in error.failures.items()}
    this = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    local_causes = [cause for rank, cause in causes.items() if rank == this or cause.__traceback__]
    echoes = [Echo(str(cause)) for cause in causes.values() if not isinstance(cause, Echo)]
    return next(iter([*local_causes, *echoes]), error)


def _in_order(
    stored: StoredShards | None, recorded: FileChecksums | None, verify: bool, replicas: Replicas | None
) -> Callable[[Any, Any, Any], Any]:
    """Return a `read_data` for torch that reads large whole tensors by `tensors`, and all other objects by torch, in file order.

    From a store, all objects are read ahead in order: first the objects that `replicas` read together, then this rank's.
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
                with Objects(stored, exchange.local_places) as objects:
                    read_part(set(exchange.places).__contains__, partial(exchange.take, read=objects.take))
                    exchange.finish(objects.take)
            shared = {candidate for exchange in exchanges for candidate in exchange.places}
            with Objects(stored, [candidate for candidate in stored_places if candidate not in shared]) as objects:
                return read_part(lambda candidate: candidate not in shared, objects.take)

    return read


def _place(info: Any) -> Place:
    return Place(str(info.relative_path), int(info.offset), int(info.length))


def _opening(filesystem: Any, stored: StoredShards, take: Take) -> contextlib.AbstractContextManager[None]:
    """Within the context, shards on the store open as files whose objects come from `take`."""
    create_stream = filesystem.create_stream

    def opened(path: Any, mode: str) -> Any:
        name = os.path.basename(path)
        return OpenShard(name, stored.url, take) if name in stored.shards else create_stream(path, mode)

    return dcp_filesystem.open_by(filesystem, opened)


def _begun(tensors: TensorReader, place: Place, item: Any, reader: Any, planner: Any) -> torch.Tensor | None:
    """Start to read the object into its tensor. Return the tensor, or None if its layout or type does not fit."""
    transforms = getattr(reader.storage_data[item.storage_index], "transform_descriptors", None)
    is_small = item.type == LoadItemType.BYTE_IO or place.size_bytes < LEAST_BYTES
    if is_small or transforms or any(item.storage_offsets):
        return None
    # Other tensor types may be quantized: `resolve_tensor` returns them in another form.
    if type(planner.lookup_tensor(item.dest_index)) not in (torch.Tensor, torch.nn.Parameter):
        return None
    target = planner.resolve_tensor(item).detach()
    return target if tensors.begin(place, target) else None


class _Memory:
    """A buffer that successive objects share, because the kernel would clear the pages of new memory."""

    def __init__(self) -> None:
        self.buffer = np.empty(0, np.uint8)

    def of(self, size_bytes: int) -> memoryview:
        """Return a view of the buffer that is valid until the next call."""
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
    """Fill `content` from an open file, a large object in several pieces at a time. With `verify`, return the CRC-32.

    An object from a store is in `content` already.
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
    """A position in an open file that other threads read at other positions."""

    def __init__(self, descriptor: int, position: int):
        self.descriptor, self.position = descriptor, position

    def readinto(self, buffer: memoryview) -> int:
        count = os.preadv(self.descriptor, [buffer], self.position)
        self.position += count
        return count

    def tell(self) -> int:
        return self.position


def _read_piece(file: Any, content: memoryview, origin: str, verify: bool) -> int:
    """Read a piece. The CRC-32 of each block is computed while the block is in the processor's cache."""
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
    """torch's tensor properties without strides, which torch writes since 2.15; Megatron saves contiguous tensors only.

    Earlier versions of torch cannot read strides, and megatron-core, to 0.19.2 at least, passes all properties to `torch.empty`.
    """

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state[:5])  # type: ignore[no-untyped-call]
        vars(self).pop("strides", None)
        self.__class__ = TensorProperties  # type: ignore[assignment]


_INDEX_STAND_INS = {f"{TensorProperties.__module__}.{TensorProperties.__qualname__}": _TensorProperties}


def read_index(file: IO[bytes]) -> Any:
    """Read the `Metadata` in an open `.metadata` file. Raise BadData for a pickle that names any other class."""
    origin = str(getattr(file, "name", INDEX))
    index = pickles.load_known(file.read(), INDEX_NAMES, origin, stand_ins=_INDEX_STAND_INS)
    for stored in getattr(index, "storage_data", {}).values():
        checkpoint_layout.check_shard_name(stored.relative_path, origin)
    return index


def _read_common(file: Any, torch_load: Callable[..., Any], verify: bool) -> dict[str, Any]:
    """Check the archive of `common.pt`, and read it with torch's restricted unpickler. Raise BadData."""
    origin = os.fspath(file)
    try:
        with open(file, "rb", opener=ownership.open_checked) as opened:
            content = memoryview(opened.read())
    except FileNotFoundError:
        advice = "install the megatron-core that saved it: 0.19, for which Python 3.12 is needed, stores its content elsewhere"
        raise BadData(f"{origin}: missing", advice) from None
    archive = TorchArchive(content, origin, verify)
    for member in archive.zip.members.values():
        archive.zip.read(member, verify)
    try:
        common = torch_load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        raise BadData(f"{origin}: damaged: {_reason(error)}", DAMAGED) from None
    return _common_state(common, origin)


def _load_common(load_common: Callable[[Any], Any], directory: Any) -> dict[str, Any]:
    """Load the state that megatron-core 0.19 stores in a list among the tensors, by `load_common`. Raise BadData."""
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
    """Return the error in one line, without torch's advice to allow the pickle's functions."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return next((line for line in lines if "GLOBAL" in line), lines[0])[:200]
