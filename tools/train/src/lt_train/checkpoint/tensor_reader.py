"""Read large tensors from a checkpoint's shards on a filesystem into the parameters, several pieces at a time.

torch's reader reads one object after the other into new memory, whose pages the kernel has to clear, and copies the tensor from
there. Here a piece of a tensor is read into the parameter itself and its CRC-32 computed. If the parameter is on a GPU, split, or
has another dtype, the piece is read into a small page-locked buffer first. `readers()` pieces are under way at a time.

Pieces are read through the page cache. Pieces of 8 MiB with O_DIRECT are not faster: 1.25 to 1.42 GB/s compared with 1.35 (dd
with iflag=direct: 1.26; from the page cache: 7.6). A GB would take 0.27 s of a processor instead of 0.42, but the other ranks of
the node, and the next start, would not find the pages in memory (2 busy cores, a virtual disk, 2026-11-27).
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Self

import torch

from lt_shared.console import BadData
from lt_shared.files import checksums
from lt_shared.files.checksums import DAMAGED, MISMATCHED, FileChecksums
from lt_shared.files.local_files import read_at
from lt_train.checkpoint import archive_reader, thread_switching
from lt_train.checkpoint.archive_reader import Ends, TensorBytes
from lt_train.checkpoint.shards.stored_shards import Place
from lt_train.kernels.split_master_weights import Loading
from lt_train.process import device

# A thread needs the interpreter after each call, so pieces are large and read with few calls. 25.1 GiB came from the page cache
# to an H200 in 1.1 s; pieces of 8 MiB, read in blocks of 1 MiB, took 4.0 s. Beside the import of flash-attn-4, pieces of 16 MiB
# took 1.6 to 1.8 s, of 8 MiB 2.3 s, of 32 and 64 MiB 1.5 to 1.7 s, and the blocks of 1 MiB 4.0 to 4.7 s (16 processors,
# 2026-11-27).
PIECE_BYTES = 16 << 20
# On 16 processors, 8 threads are as fast as 16, with pieces of 32 MiB.
LEAST_READERS, MOST_READERS = 8, 16
# Smaller objects are left to torch's reader, because inspecting them takes as long as reading them.
LEAST_BYTES = 1 << 20
# The first and last bytes of an archive, with its headers and its directory.
END_BYTES = 8192


def readers() -> int:
    """Return the number of reading threads: one per processor that this rank has to itself, within limits."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min(MOST_READERS, max(LEAST_READERS, len(os.sched_getaffinity(0)) // ranks))


@contextlib.contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Within the context, add the file's path to errors of reading an open file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


class _Piece(NamedTuple):
    """A range of a file, read to the elements of a flat tensor from `first` on."""

    shard: str
    position: int
    size_bytes: int
    dtype: torch.dtype
    target: torch.Tensor
    first: int


class _Reading(NamedTuple):
    """A tensor that is being read, and the CRC-32 of each piece.

    `expected` is the recorded CRC-32 of the whole archive, or the CRC-32 of the tensor's bytes if the checkpoint has no recorded
    checksums, or None if both are unknown.
    """

    place: Place
    tensor: TensorBytes
    expected: int | None
    pieces: list[_Piece]
    checksums: list[Future[int]]


class TensorReader:
    """A context that reads from the shards in `directory`. When the context ends, no thread reads any more.

    With `verify`, tensors are compared with the `recorded` checksums, or else with the archives' checksums.
    """

    def __init__(self, directory: Path, recorded: FileChecksums | None, verify: bool):
        self._directory, self._recorded, self._verify = directory, recorded, verify
        self._readers = readers()
        self._pool = ThreadPoolExecutor(self._readers, "shards")
        self._stack = contextlib.ExitStack()
        self._of_thread = threading.local()
        # Each thread keeps one shard open, because a checkpoint of many ranks has more shards than a process may open.
        self._opened: dict[int, tuple[str, int]] = {}
        self._readings: list[_Reading] = []
        self._pieces: list[_Piece] = []

    def __enter__(self) -> Self:
        self._stack.enter_context(thread_switching.switch_often())
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._stack.close()
        for _, descriptor in self._opened.values():
            os.close(descriptor)

    def begin(self, place: Place, target: torch.Tensor) -> bool:
        """Start to read the object at `place` into `target`.

        Return False, and read nothing, unless the object is a large tensor with the shape of `target` and undamaged ends. The
        caller must then read the whole object.
        """
        if place.size_bytes < LEAST_BYTES or not target.is_contiguous():
            return False
        expected = None
        if self._recorded is not None:
            ranges = self._recorded.within(*place)
            if [range_[:2] for range_ in ranges] != [(place.offset, place.size_bytes)]:
                return False
            expected = ranges[0][2]
        tensor = self._find(place)
        if tensor is None or tensor.shape != target.shape:
            return False
        if self._recorded is None and self._verify:
            expected = tensor.crc32 or None
        begin, flat = place.offset + tensor.begin, target.view(-1)
        pieces = [
            _Piece(
                place.shard, begin + start, min(PIECE_BYTES, tensor.size_bytes - start), tensor.dtype, flat,
                start // tensor.dtype.itemsize,
            )
            for start in range(0, tensor.size_bytes, PIECE_BYTES)
        ]  # fmt: skip
        first = len(self._pieces)
        self._pieces += pieces
        checksums_of_pieces = [self._pool.submit(self._read, first + number) for number in range(len(pieces))]
        self._readings.append(_Reading(place, tensor, expected, pieces, checksums_of_pieces))
        return True

    def wait(self) -> None:
        """Wait until all tensors are read. Raise BadData if a shard ends too early or differs from its checksum."""
        for place, tensor, expected, pieces, reads in self._readings:
            parts = [(checksum.result(), piece.size_bytes) for checksum, piece in zip(reads, pieces, strict=True)]
            if self._recorded is not None:
                ends = [(checksums.crc32(end), len(end)) for end in (tensor.head, tensor.tail)]
                parts = [ends[0], *parts, ends[1]]
            if expected is not None and checksums.joined_all(parts) != expected:
                checksum_source = FileChecksums.NAME if self._recorded is not None else "its archive"
                reason = f"the checksum of {place.size_bytes} bytes at {place.offset} is another than {checksum_source} says"
                raise BadData(f"{self._directory / place.shard}: {reason}", MISMATCHED)
        self._readings.clear()

    def _find(self, place: Place) -> TensorBytes | None:
        descriptor = self._descriptor(place.shard)
        with naming(self._directory / place.shard):
            head, tail = (read_at(descriptor, END_BYTES, at) for at in (place.offset, place.end - END_BYTES))
        if len(tail) < END_BYTES:
            return None
        ends = Ends(memoryview(head), memoryview(tail), place.size_bytes)
        verifies = self._verify and self._recorded is None
        return archive_reader.find_tensor(ends, f"{self._directory / place.shard}, object at {place.offset}", verifies)

    def _descriptor(self, shard: str) -> int:
        """Return the descriptor of the shard. This thread keeps the shard open until it needs another one."""
        thread = threading.get_ident()
        name, descriptor = self._opened.get(thread, (None, -1))
        if name != shard:
            if name is not None:
                del self._opened[thread]
                os.close(descriptor)
            descriptor = os.open(self._directory / shard, os.O_RDONLY | os.O_CLOEXEC)
            self._opened[thread] = shard, descriptor
        return descriptor

    def _read(self, number: int) -> int:
        """Read a piece into its tensor. Return the CRC-32."""
        # Let the kernel read the piece that is a piece per thread ahead, so that the disk is never idle.
        for ahead in self._pieces[number + self._readers : number + self._readers + 1]:
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._descriptor(ahead.shard), ahead.position, ahead.size_bytes, os.POSIX_FADV_WILLNEED)
        piece = self._pieces[number]
        target = piece.target[piece.first : piece.first + piece.size_bytes // piece.dtype.itemsize]
        if loading := Loading.find_containing(target):
            split, begin = loading
            buffer = self._buffer(split.weight.device)[: piece.size_bytes]
            checksum = self._fill(piece, buffer)
            split.put(buffer.view(piece.dtype).float(), begin)
        elif target.device.type == device.CPU and target.dtype == piece.dtype:
            checksum = self._fill(piece, target.view(torch.uint8))
        else:
            buffer = self._buffer(target.device)[: piece.size_bytes]
            checksum = self._fill(piece, buffer)
            target.copy_(buffer.view(piece.dtype))
        return checksum

    def _buffer(self, target_device: torch.device) -> torch.Tensor:
        """Return this thread's buffer, page-locked if a GPU copies from it."""
        buffers: dict[torch.device, torch.Tensor] = vars(self._of_thread).setdefault("buffers", {})
        if target_device not in buffers:
            device.use(target_device)
            buffers[target_device] = torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=target_device.type != device.CPU)
        return buffers[target_device]

    def _fill(self, piece: _Piece, target: torch.Tensor) -> int:
        content: memoryview = target.numpy().data
        descriptor = self._descriptor(piece.shard)
        filled = 0
        while filled < len(content):
            with naming(self._directory / piece.shard):
                count = os.preadv(descriptor, [content[filled:]], piece.position + filled)
            if not count:
                end, piece_end = piece.position + filled, piece.position + piece.size_bytes
                raise BadData(f"{self._directory / piece.shard}: ends at {end} bytes, {piece_end} are needed", DAMAGED)
            filled += count
        return checksums.crc32(content) if self._verify else 0
