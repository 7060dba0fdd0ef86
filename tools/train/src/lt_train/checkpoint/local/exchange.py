"""Send files between nodes through a separate gloo group in host memory, beside the training steps.

Each rank sends one file and receives one file at the same time, in an order that all ranks know. Both ranks of the first
unfinished transfer work on it, so no rank waits for ever. A rank takes two buffers of CHUNK_BYTES. If a file cannot be read or
written, the transfer still runs to its end, because the other rank must not wait; the failure is reported afterwards.
"""

import contextlib
import dataclasses
import datetime
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from lt_shared.files import checksums
from lt_train.process import device, rendezvous

CHUNK_BYTES = 16 * 2**20
UNREADABLE = -1


@dataclasses.dataclass(frozen=True)
class Transfer:
    """Send the file `name` from rank `source` to rank `target`."""

    source: int
    target: int
    name: str
    size_bytes: int


class Exchange:
    """The gloo group of the transfers. All ranks construct it together."""

    def __init__(self, timeout_seconds: float):
        with rendezvous.connect_when_used():
            timeout = datetime.timedelta(seconds=timeout_seconds)
            self._group = torch.distributed.new_group(backend=device.BACKENDS[device.CPU], timeout=timeout)

    def run(self, transfers: Sequence[Transfer], held: Path, into: Path) -> str | None:
        """Run this rank's part of `transfers`: read files from the directory `held`, write files into the directory `into`.

        Returns why a file could not be read or written. A file gets its name when it is complete. Raises RuntimeError if the
        connection to another rank is lost.
        """
        rank, problems = torch.distributed.get_rank(), list[str]()
        sending = Beside(self._send_all, [transfer for transfer in transfers if transfer.source == rank], held, problems)
        # If receiving raises, perhaps no rank receives from the sending thread any more. So do not join it; it ends with the
        # group.
        self._receive_all([transfer for transfer in transfers if transfer.target == rank], into, problems)
        sending.result()
        return problems[0] if problems else None

    def _send_all(self, transfers: Iterable[Transfer], held: Path, problems: list[str]) -> None:
        buffer = None
        for transfer in transfers:
            buffer = torch.empty(CHUNK_BYTES, dtype=torch.uint8) if buffer is None else buffer
            try:
                with (held / transfer.name).open("rb", buffering=0) as file:
                    checksum = self._send(transfer, file, buffer)
            except OSError as error:
                problems.append(f"{held / transfer.name}: {error.strerror}")
                checksum = self._send(transfer, None, buffer)
            torch.distributed.send(torch.tensor([checksum]), transfer.target, self._group)

    def _send(self, transfer: Transfer, file: Any, buffer: torch.Tensor) -> int:
        """Send the file and return its CRC-32. Without a file, send as many arbitrary bytes, because the other rank expects them.

        Raises OSError only before any byte is sent.
        """
        checksum = 0 if file else UNREADABLE
        if file and os.fstat(file.fileno()).st_size != transfer.size_bytes:
            raise OSError(0, "has another size than before")
        for part in _parts(transfer, buffer):
            content = _content(part)
            try:
                is_read = file is not None and _fill(file, content)
            except OSError:
                is_read = False
            checksum = checksums.crc32(content, checksum) if is_read and checksum != UNREADABLE else UNREADABLE
            torch.distributed.send(part, transfer.target, self._group)
        return checksum

    def _receive_all(self, transfers: Iterable[Transfer], into: Path, problems: list[str]) -> None:
        buffer = None
        for transfer in transfers:
            buffer = torch.empty(CHUNK_BYTES, dtype=torch.uint8) if buffer is None else buffer
            if problem := self._receive(transfer, into, buffer):
                problems.append(problem)

    def _receive(self, transfer: Transfer, into: Path, buffer: torch.Tensor) -> str | None:
        partial, problem, checksum = into / f".{transfer.name}.received", None, 0
        try:
            file = partial.open("wb", buffering=0)
        except OSError as error:
            file, problem = None, f"{partial}: {error.strerror}"
        # Receive every part even after a failure: the source does not know of it and sends the whole file.
        for part in _parts(transfer, buffer):
            torch.distributed.recv(part, transfer.source, self._group)
            content = _content(part)
            checksum = checksums.crc32(content, checksum)
            problem = problem or _write(file, content)
        sent = torch.tensor([0])
        # UNREADABLE is no CRC-32, so it never matches.
        torch.distributed.recv(sent, transfer.source, self._group)
        if problem is None and sent.item() != checksum:
            problem = f"{transfer.name}: rank {transfer.source} could not read it"
        return _finish(file, partial, into / transfer.name, problem)


class Beside(threading.Thread):
    """A thread that runs a function beside its caller and keeps the result or the error."""

    def __init__(self, function: Callable[..., Any], *arguments: Any):
        super().__init__(name="local-copies", daemon=True)
        self._work: tuple[Callable[..., Any], tuple[Any, ...]] | None = (function, arguments)
        self._result: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        assert self._work
        function, arguments = self._work
        try:
            self._result = function(*arguments)
        except BaseException as error:
            self._error = error
        # Drop the function: it may hold a process group, and the next attempt in this process makes a new one.
        self._work = None

    def result(self) -> Any:
        """Wait for the end. Return the result or raise the error."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._result


def _parts(transfer: Transfer, buffer: torch.Tensor) -> Iterable[torch.Tensor]:
    return (buffer[: min(CHUNK_BYTES, transfer.size_bytes - at)] for at in range(0, transfer.size_bytes, CHUNK_BYTES))


def _content(part: torch.Tensor) -> memoryview:
    """Return the memory of a uint8 tensor."""
    return memoryview(part.numpy())  # type: ignore[arg-type]


def _fill(file: Any, content: memoryview) -> bool:
    """Fill `content` from the file. Return whether the file had enough bytes."""
    filled = 0
    while filled < len(content) and (count := file.readinto(content[filled:])):
        filled += count
    return filled == len(content)


def _write(file: Any, content: memoryview) -> str | None:
    try:
        written = 0
        while written < len(content):
            written += file.write(content[written:])
    except OSError as error:
        return f"{file.name}: {error.strerror}"
    return None


def _finish(file: Any, partial: Path, target: Path, problem: str | None) -> str | None:
    """Rename the complete file to `target`, or delete it."""
    try:
        if file:
            with file:
                # The file counts as soon as it has its name, so its bytes must be on disk before.
                os.fsync(file.fileno())
        if problem is None:
            partial.rename(target)
            return None
    except OSError as error:
        problem = problem or f"{partial}: {error.strerror}"
    with contextlib.suppress(OSError):
        partial.unlink()
    return problem
