"""Copies between launchers: whole or not at all, and with launchers of the same run only."""

import mmap
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lt_shared.console import BadConfig, Unavailable
from lt_train.checkpoint.memory.header import COMPLETE_BYTES, write_step
from lt_train.launch import copy_exchange, run_secret
from lt_train.launch.copy_exchange import CHUNK_BYTES, CopySender, CopyServer
from lt_train.launch.kept_copies import Copy, KeptCopies

SECRET = b"of the run"
HOST = "127.0.0.1"
SIZE_BYTES = CHUNK_BYTES + 4096


@pytest.fixture
def copies() -> Iterator[KeptCopies]:
    kept = KeptCopies()
    yield kept
    kept.close()


@pytest.fixture
def server(copies: KeptCopies) -> Iterator[CopyServer]:
    with CopyServer(copies, SECRET, HOST) as server:
        yield server


def memory(step: int, fill: int) -> Copy:
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, SIZE_BYTES)
    os.pwrite(descriptor, bytes([fill]) * (SIZE_BYTES - COMPLETE_BYTES), COMPLETE_BYTES)
    write_step(descriptor, step)
    return Copy(step, descriptor, SIZE_BYTES)


def content(copies: KeptCopies, rank: int, step: int) -> bytes:
    copy = copies.find(rank, step)
    assert copy is not None
    with mmap.mmap(copy.descriptor, copy.size_bytes, prot=mmap.PROT_READ) as mapped:
        return bytes(mapped[COMPLETE_BYTES:])


def send(source: KeptCopies, server: CopyServer, rank: int, step: int) -> None:
    arrived = threading.Event()
    with CopySender(source, SECRET, HOST, server.port, lambda *_: arrived.set()) as sender:
        sender.send(rank, step)
        assert arrived.wait(30)


def test_copies_arrive_and_are_fetched(copies: KeptCopies, server: CopyServer) -> None:
    source = KeptCopies()
    for step in (1, 2, 3):
        source.keep(5, memory(step, step))
        send(source, server, 5, step)
    assert copies.steps() == {5: [2, 3]}
    fetched = KeptCopies()
    copy_exchange.fetch(fetched, SECRET, HOST, server.port, 5, 2)
    assert content(fetched, 5, 2) == bytes([2]) * (SIZE_BYTES - COMPLETE_BYTES)
    with pytest.raises(OSError, match="has no copy of rank 5 after iteration 1"):
        copy_exchange.fetch(fetched, SECRET, HOST, server.port, 5, 1)
    for kept in (source, fetched):
        kept.close()


@pytest.mark.parametrize("damage", ["killed", "changed"])
def test_a_copy_that_does_not_arrive_whole_never_counts(damage: str, copies: KeptCopies, server: CopyServer) -> None:
    """The memory of the oldest copy is being written when the sender is killed: the newest one stays."""
    for step in (1, 2):
        copies.keep(0, memory(step, step))
    with copy_exchange.connect(HOST, server.port, SECRET) as connection:
        copy_exchange._send_line(connection, {"put": 3, "rank": 0, "bytes": SIZE_BYTES})
        connection.sendall(b"\x03" * (SIZE_BYTES - COMPLETE_BYTES if damage == "changed" else CHUNK_BYTES))
        if damage == "changed":
            connection.sendall(b"\0\0\0\0")
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b"", "there is no answer"
    assert copies.steps() == {0: [2]}
    assert content(copies, 0, 2) == bytes([2]) * (SIZE_BYTES - COMPLETE_BYTES)


def test_a_copy_that_is_written_again_while_it_is_sent_is_not_sent(copies: KeptCopies, server: CopyServer) -> None:
    copies.keep(0, memory(4, 4))
    copy, target = copies.find(0, 4), KeptCopies()
    assert copy
    original = copy_exchange.checksums.crc32

    def rewrite(*arguments: object) -> int:
        write_step(copy.descriptor, 0)
        return original(*arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copy_exchange.checksums, "crc32", rewrite)
        with pytest.raises(OSError, match="closed the connection"):
            copy_exchange.fetch(target, SECRET, HOST, server.port, 0, 4)
    assert target.steps() == {}


def test_strangers_are_refused(copies: KeptCopies, server: CopyServer) -> None:
    copies.keep(0, memory(1, 1))
    with pytest.raises(OSError, match="closed the connection"):
        copy_exchange.connect(HOST, server.port, b"another run")
    with socket.create_connection((HOST, server.port)) as connection:
        # An echo of the server's challenge proves nothing.
        nonce = connection.recv(copy_exchange.NONCE_BYTES)
        connection.sendall(nonce + nonce)
        assert connection.recv(1) == b""
    for request in ({"put": 1, "rank": 0, "bytes": 2**60}, {"put": -1, "rank": 0, "bytes": 99}, {"get": "x", "rank": 0}, {}):
        with copy_exchange.connect(HOST, server.port, SECRET) as connection:
            copy_exchange._send_line(connection, request)
            assert connection.recv(1) == b"", request
    assert copies.steps() == {0: [1]}


def test_the_secret_is_the_owners_alone(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no secret"):
        run_secret.read(str(tmp_path), is_first=False, wait_seconds=0)
    secret = run_secret.read(str(tmp_path), is_first=True, wait_seconds=0)
    path = tmp_path / run_secret.FILE
    assert path.stat().st_mode & 0o777 == 0o600
    assert run_secret.read(str(tmp_path), is_first=False, wait_seconds=0) == secret
    assert run_secret.read(str(tmp_path), is_first=True, wait_seconds=0) == secret
    path.chmod(0o640)
    with pytest.raises(BadConfig, match="other users could know it"):
        run_secret.read(str(tmp_path), is_first=True, wait_seconds=0)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadConfig, match="symbolic links"):
        run_secret.read(str(tmp_path), is_first=True, wait_seconds=0)
