"""The program of a rank's writer process: `python -m lt_train.checkpoint.shards.writer_program RANK_PID`, see writer_process.py.

It imports neither torch nor megatron-core. Its standard input is the connection to its rank.
"""

import itertools
import mmap
import os
import pickle
import socket
import sys
import threading
from collections.abc import Iterator, Sequence

from lt_shared.console import ToolError, output
from lt_train.checkpoint.shards import archives
from lt_train.checkpoint.shards.archives import Archive
from lt_train.checkpoint.shards.writer_process import LENGTH, Answer, File, Request, StagedTensor, failure_of
from lt_train.process import process_lifetime


def main() -> None:
    # If the rank is killed, its files are never published: an orphaned writer would only delay the next attempt.
    process_lifetime.die_with(int(sys.argv[1]))
    output.begin("lt-train")
    with socket.socket(fileno=0) as connection:
        while (command := _receive_command(connection)) is not None:
            answer = _answer(*command, Requests(connection))
            connection.sendall(pickle.dumps(answer))
    os._exit(0)


class Requests:
    """Ask the rank to copy tensors into the shared memory in their turn. The threads of several files ask at once."""

    def __init__(self, connection: socket.socket):
        self._connection = connection
        self._lock = threading.Lock()

    def offset(self, request: Request) -> int:
        with self._lock:
            self._connection.sendall(pickle.dumps(request))
            offset = self._connection.recv(LENGTH.size, socket.MSG_WAITALL)
        return int(LENGTH.unpack(offset)[0])


def _receive_command(connection: socket.socket) -> tuple[mmap.mmap, list[File]] | None:
    """Receive the shared memory and the files to write; None when the rank has closed the connection."""
    length, (*descriptors,), _, _ = socket.recv_fds(connection, LENGTH.size, 1, socket.MSG_WAITALL)
    if len(length) < LENGTH.size:
        return None
    content = bytearray()
    while len(content) < LENGTH.unpack(length)[0]:
        if not (part := connection.recv(1 << 20)):
            return None
        content += part
    memory = mmap.mmap(descriptors[0], 0, prot=mmap.PROT_READ)
    os.close(descriptors[0])
    return memory, pickle.loads(content)


def _answer(memory: mmap.mmap, files: Sequence[File], requests: Requests) -> Answer:
    view = memoryview(memory)
    try:
        parts = [(path, _archives(number, objects, view, requests)) for number, (path, objects) in enumerate(files)]
        return archives.write_files(parts)
    except ToolError as error:
        return failure_of(error)
    except OSError as error:
        return error
    except Exception as error:
        # Other exceptions may not survive pickling.
        return RuntimeError(str(error))


def _archives(file: int, objects: Sequence[bytes | StagedTensor], memory: memoryview, requests: Requests) -> Iterator[Archive]:
    """Yield the objects and tensors of a file. A tensor is written before the next tensor is requested."""
    tensors = itertools.count()
    for stored in objects:
        if isinstance(stored, StagedTensor):
            request = Request(file, next(tensors))
            offset = requests.offset(request) if stored.offset is None else stored.offset
            yield archives.frame_tensor(stored.frame, memory[offset : offset + stored.size_bytes])
        else:
            yield archives.wrap_object(memoryview(stored))


if __name__ == "__main__":
    main()
