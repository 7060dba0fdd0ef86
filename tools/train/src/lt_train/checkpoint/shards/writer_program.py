"""The program of a rank's writer process: `python -m lt_train.checkpoint.shards.writer_program RANK_PID`, see writer_process.py.

It imports neither torch nor megatron-core. Its standard input is the connection to its rank.
"""

import mmap
import os
import pickle
import socket
import sys
from collections.abc import Iterator, Sequence

from lt_shared.console import ToolError, output
from lt_train.checkpoint.shards import archives
from lt_train.checkpoint.shards.archives import Archive
from lt_train.checkpoint.shards.writer_process import LENGTH, Answer, File, StagedTensor, failure_of
from lt_train.runtime import process_lifetime


def main() -> None:
    # Where the rank is killed, what it began to write is never published: an orphan would only hold up the next attempt.
    process_lifetime.die_with(int(sys.argv[1]))
    output.begin("lt-train")
    with socket.socket(fileno=0) as connection:
        while (command := _received(connection)) is not None:
            connection.sendall(pickle.dumps(_answer(*command)))
    os._exit(0)


def _received(connection: socket.socket) -> tuple[mmap.mmap, list[File]] | None:
    """The shared memory, and what to write; None when the rank has closed the connection."""
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


def _answer(memory: mmap.mmap, files: Sequence[File]) -> Answer:
    try:
        return archives.write_files([(path, _archives(memoryview(memory), objects)) for path, objects in files])
    except ToolError as error:
        return failure_of(error)
    except OSError as error:
        return error
    except Exception as error:
        # Others may not come through a pickle as they are.
        return RuntimeError(str(error))


def _archives(memory: memoryview, objects: Sequence[bytes | StagedTensor]) -> Iterator[Archive]:
    for stored in objects:
        if isinstance(stored, StagedTensor):
            yield archives.framed(stored.frame, memory[stored.offset : stored.offset + stored.size_bytes])
        else:
            yield archives.plain(memoryview(stored))


if __name__ == "__main__":
    main()
