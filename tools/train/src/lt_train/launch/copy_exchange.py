"""Exchange copies of ranks' states between the launchers of two nodes, through TCP.

A connection begins with a challenge to both sides, because a copy becomes the weights of a rank: only launchers that know the
secret of the run go on. Then the client sends a request, a line of JSON, and copies follow as bytes:

    {"put": 40, "rank": 2, "bytes": 99}     then 99 bytes and their CRC-32; the answer is {"put": true}
    {"get": 40, "rank": 2}                  the answer is {"bytes": 99}, then 99 bytes and their CRC-32; or {"bytes": 0}

A received copy counts when it is complete and its checksum is right. Nothing is unpickled or run.
"""

import contextlib
import hmac
import json
import mmap
import os
import queue
import secrets
import socket
import threading
from collections.abc import Callable
from typing import Any

from lt_shared import memory
from lt_shared.console import warn
from lt_shared.files import checksums
from lt_train.checkpoint.memory.header import COMPLETE_BYTES, write_step
from lt_train.launch.kept_copies import Copy, KeptCopies

CHUNK_BYTES = 4 << 20
LINE_BYTES = 1024
NONCE_BYTES = 32
CHECKSUM_BYTES = 4
# A side that sends nothing for so long is lost.
SILENT_SECONDS = 20.0
RETRY_SECONDS = 1.0
# Of the node's available memory, for one copy.
USABLE_SHARE = 0.8


class ExchangeError(OSError):
    """The other side is no launcher of this run, or breaks the protocol."""


class CopyServer:
    """Serve the copies that `copies` keeps, and keep copies that another node sends. A context."""

    def __init__(self, copies: KeptCopies, secret: bytes, address: str = ""):
        self._copies = copies
        self._secret = secret
        self._listener = socket.create_server((address, 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> "CopyServer":
        threading.Thread(target=self._accept, name="copy-server", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        # A thread that waits in accept is not woken by close alone.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), name="copy-server", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            connection.settimeout(SILENT_SECONDS)
            _authenticate(connection, self._secret, is_server=True)
            connection.settimeout(None)
            while True:
                request = _receive_line(connection)
                connection.settimeout(SILENT_SECONDS)
                if "put" in request:
                    _receive_copy(connection, self._copies, int(request["rank"]), int(request["put"]), int(request["bytes"]))
                    _send_line(connection, {"put": True})
                else:
                    self._send_stored(connection, int(request["rank"]), int(request["get"]))
                connection.settimeout(None)

    def _send_stored(self, connection: socket.socket, rank: int, step: int) -> None:
        copy = self._copies.open(rank, step)
        if copy is None:
            _send_line(connection, {"bytes": 0})
            return
        try:
            _send_line(connection, {"bytes": copy.size_bytes})
            _send_copy(connection, copy)
        finally:
            os.close(copy.descriptor)


class CopySender:
    """Send copies to the launcher of the next node, in a thread. `report` gets rank and step when a copy has arrived."""

    def __init__(self, copies: KeptCopies, secret: bytes, host: str, port: int, report: Callable[[int, int], None]):
        self._copies = copies
        self._secret = secret
        self._host, self._port = host, port
        self._report = report
        self._queue: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._stop = threading.Event()

    def __enter__(self) -> "CopySender":
        threading.Thread(target=self._run, name="copy-sender", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._queue.put(None)

    def send(self, rank: int, step: int) -> None:
        self._queue.put((rank, step))

    def _run(self) -> None:
        item, is_failing = self._queue.get(), False
        while item and not self._stop.is_set():
            # Until a copy has arrived, no rank makes the next one.
            try:
                with connect(self._host, self._port, self._secret) as connection:
                    while item and not self._stop.is_set():
                        self._put(connection, *item)
                        is_failing = False
                        item = self._queue.get()
            except (OSError, ValueError) as error:
                if not self._stop.wait(RETRY_SECONDS) and not is_failing:
                    warn(f"a copy for the memory of {self._host} has not arrived, and is sent until it does: {error}")
                    is_failing = True

    def _put(self, connection: socket.socket, rank: int, step: int) -> None:
        copy = self._copies.open(rank, step)
        if copy is None:
            return
        try:
            _send_line(connection, {"put": step, "rank": rank, "bytes": copy.size_bytes})
            _send_copy(connection, copy)
        finally:
            os.close(copy.descriptor)
        if _receive_line(connection).get("put") is True:
            self._report(rank, step)


def fetch(copies: KeptCopies, secret: bytes, host: str, port: int, rank: int, step: int) -> None:
    """Fetch a copy from the launcher at `host`, and keep it. Raises OSError if the launcher has none, or is lost."""
    with connect(host, port, secret) as connection:
        _send_line(connection, {"get": step, "rank": rank})
        size_bytes = int(_receive_line(connection).get("bytes", 0))
        if size_bytes <= 0:
            raise ExchangeError(f"{host} has no copy of rank {rank} after iteration {step}")
        _receive_copy(connection, copies, rank, step, size_bytes)


def connect(host: str, port: int, secret: bytes) -> socket.socket:
    """Connect to the CopyServer at `host`. Raises OSError, also if it does not know the secret."""
    connection = socket.create_connection((host, port), timeout=SILENT_SECONDS)
    try:
        _authenticate(connection, secret, is_server=False)
    except BaseException:
        connection.close()
        raise
    return connection


def _authenticate(connection: socket.socket, secret: bytes, is_server: bool) -> None:
    """Let both sides prove that they know `secret`, without sending it. The client proves it first."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    connection.sendall(nonce)
    other_nonce = _receive_bytes(connection, NONCE_BYTES)
    client, server = (other_nonce, nonce) if is_server else (nonce, other_nonce)
    proofs = {side: hmac.digest(secret, side + client + server, "sha256") for side in (b"client", b"server")}
    local, remote = (b"server", b"client") if is_server else (b"client", b"server")
    if not is_server:
        connection.sendall(proofs[local])
    if not hmac.compare_digest(_receive_bytes(connection, len(proofs[remote])), proofs[remote]):
        raise ExchangeError("the other side does not know the secret of the run")
    if is_server:
        connection.sendall(proofs[local])


def _send_copy(connection: socket.socket, copy: Copy) -> None:
    """Send the bytes of the copy but for its step, and their CRC-32."""
    checksum = 0
    with mmap.mmap(copy.descriptor, copy.size_bytes, prot=mmap.PROT_READ) as mapped, memoryview(mapped) as content:
        for offset in range(COMPLETE_BYTES, copy.size_bytes, CHUNK_BYTES):
            with content[offset : offset + CHUNK_BYTES] as part:
                checksum = checksums.crc32(part, checksum)
                connection.sendall(part)
    if not copy.is_complete:
        raise ExchangeError("the copy was written again while it was sent")
    connection.sendall(checksum.to_bytes(CHECKSUM_BYTES, "little"))


def _receive_copy(connection: socket.socket, copies: KeptCopies, rank: int, step: int, size_bytes: int) -> None:
    """Receive what `_send_copy` sends into memory, and keep it if it is whole. Raises ExchangeError otherwise."""
    if step <= 0 or rank < 0 or not COMPLETE_BYTES < size_bytes <= USABLE_SHARE * memory.available_bytes():
        raise ExchangeError(f"a copy of {size_bytes} bytes after iteration {step} is refused")
    earlier = copies.take_oldest(rank)
    if earlier is not None and earlier.size_bytes == size_bytes:
        descriptor = earlier.descriptor
    else:
        if earlier is not None:
            os.close(earlier.descriptor)
        descriptor = os.memfd_create("lt-train-copy")
        os.ftruncate(descriptor, size_bytes)
    write_step(descriptor, 0)
    try:
        checksum = 0
        with mmap.mmap(descriptor, size_bytes) as mapped, memoryview(mapped) as content:
            for offset in range(COMPLETE_BYTES, size_bytes, CHUNK_BYTES):
                with content[offset : offset + CHUNK_BYTES] as part:
                    _receive_into(connection, part)
                    checksum = checksums.crc32(part, checksum)
        if _receive_bytes(connection, CHECKSUM_BYTES) != checksum.to_bytes(CHECKSUM_BYTES, "little"):
            raise ExchangeError(f"the copy of rank {rank} after iteration {step} has another checksum")
        write_step(descriptor, step)
    except BaseException:
        os.close(descriptor)
        raise
    copies.keep(rank, Copy(step, descriptor, size_bytes))


def _receive_into(connection: socket.socket, part: memoryview) -> None:
    received = 0
    while received < len(part):
        with part[received:] as remaining:
            count = connection.recv_into(remaining)
        if not count:
            raise ExchangeError("the other side has closed the connection")
        received += count


def _receive_bytes(connection: socket.socket, count: int) -> bytes:
    content = bytearray(count)
    _receive_into(connection, memoryview(content))
    return bytes(content)


def _send_line(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _receive_line(connection: socket.socket) -> dict[str, Any]:
    """Receive a line of JSON, byte by byte, because other bytes follow it. Raises ExchangeError for a long line."""
    line = bytearray()
    while not line.endswith(b"\n"):
        line += _receive_bytes(connection, 1)
        if len(line) > LINE_BYTES:
            raise ExchangeError("a line is too long")
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ExchangeError("a line is no request")
    return message
