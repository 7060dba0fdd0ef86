"""Files of ranks on other nodes, sent through a gloo group of their own in the memory of the host.

Beside the training steps, whose collectives are in other groups. Each rank sends and receives at the same time, one file each, in
an order that all ranks know: the first transfer that is not done has the attention of both its ranks, so nobody waits for ever.
A rank takes two buffers of CHUNK_BYTES. A file that cannot be read or written is sent, or received, to its end all the same, and
the failure told afterwards: the other rank must not wait for it.
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
    """The file `name` of the rank `source`, to be written by the rank `target`."""

    source: int
    target: int
    name: str
    size_bytes: int


class Exchange:
    """All ranks make one together."""

    def __init__(self, timeout_seconds: float):
        with rendezvous.connecting_when_used():
            timeout = datetime.timedelta(seconds=timeout_seconds)
            self._group = torch.distributed.new_group(backend=device.BACKENDS[device.CPU], timeout=timeout)

    def run(self, transfers: Sequence[Transfer], held: Path, into: Path) -> str | None:
        """This rank's part of the `transfers`, from the directory `held`, into the directory `into`.

        Returns why a file could not be read or written. A file has its name when all of it is there. Raises RuntimeError when the
        connection to another rank is lost.
        """
        rank, problems = torch.distributed.get_rank(), list[str]()
        sending = Beside(self._send_all, [transfer for transfer in transfers if transfer.source == rank], held, problems)
        # When this raises, nobody may take what the thread sends: it is left to end with the group.
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
        """Send the content, or without a file anything of its size; returns its CRC-32. Raises OSError before it has sent any."""
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
        for part in _parts(transfer, buffer):
            torch.distributed.recv(part, transfer.source, self._group)
            content = _content(part)
            checksum = checksums.crc32(content, checksum)
            problem = problem or _write(file, content)
        sent = torch.tensor([0])
        torch.distributed.recv(sent, transfer.source, self._group)
        if problem is None and sent.item() != checksum:
            problem = f"{transfer.name}: rank {transfer.source} could not read it"
        return _finish(file, partial, into / transfer.name, problem)


class Beside(threading.Thread):
    """Runs a function beside its caller, for whom it keeps the result, or the error."""

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
        # It may have a process group, and the next attempt in this process makes another.
        self._work = None

    def result(self) -> Any:
        """Waits for the end; raises what ended it."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._result


def _parts(transfer: Transfer, buffer: torch.Tensor) -> Iterable[torch.Tensor]:
    return (buffer[: min(CHUNK_BYTES, transfer.size_bytes - at)] for at in range(0, transfer.size_bytes, CHUNK_BYTES))


def _content(part: torch.Tensor) -> memoryview:
    """The memory of a tensor of bytes."""
    return memoryview(part.numpy())  # type: ignore[arg-type]


def _fill(file: Any, content: memoryview) -> bool:
    """Whether the file had as much as that."""
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
    """Give the file its name, when all of it is on disk, or delete it."""
    try:
        if file:
            with file:
                os.fsync(file.fileno())
        if problem is None:
            partial.rename(target)
            return None
    except OSError as error:
        problem = problem or f"{partial}: {error.strerror}"
    with contextlib.suppress(OSError):
        partial.unlink()
    return problem
