"""Where a run listens, as the kernel tells it: on loopback with all ranks on one machine, else on the address that is used."""

import contextlib
import datetime
import glob
import ipaddress
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import torch
from reserved_ports import free_port
from running import SMALL, command, environment

from lt_train.process import rendezvous
from lt_train.process.rank_environment import RankEnvironment

LISTENING = "0A"


def listening(pids: set[int]) -> set[str]:
    """The addresses on which these processes accept connections, from /proc/net/tcp and tcp6."""
    inodes = set()
    for pid in pids:
        for path in glob.glob(f"/proc/{pid}/fd/*"):
            with contextlib.suppress(OSError):
                if match := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(path)):
                    inodes.add(match[1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == LISTENING and inode in inodes:
                words = re.findall("........", local.split(":")[0])
                found.add(str(ipaddress.ip_address(b"".join(bytes.fromhex(word)[::-1] for word in words))))
    return found


def test_a_run_on_one_machine_listens_on_loopback_alone(tmp_path: Path) -> None:
    arguments = [*SMALL, "--mock-data", "--ranks", "2", "--train-iters", "100000", "--save", str(tmp_path / "run")]
    with subprocess.Popen(
        command(*arguments), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as running:
        try:
            seen: set[str] = set()
            log = tmp_path / "run/train.log"
            while not (log.is_file() and " iteration " in log.read_text()):
                assert running.poll() is None
                tree = {running.pid, *(child.pid for child in psutil.Process(running.pid).children(recursive=True))}
                seen |= listening(tree)
                time.sleep(0.1)
            seen |= listening({running.pid, *(child.pid for child in psutil.Process(running.pid).children(recursive=True))})
        finally:
            os.killpg(running.pid, signal.SIGKILL)
    assert seen and all(ipaddress.ip_address(address).is_loopback for address in seen), seen


def first_of_two_nodes(address: str) -> RankEnvironment:
    return RankEnvironment(
        rank=0, local_rank=0, local_world_size=1, world_size=2, master_address=address, master_port=free_port(), launcher="srun"
    )


def own_address() -> str | None:
    """An address of this machine other than loopback."""
    addresses = [
        entry.address for entries in psutil.net_if_addrs().values() for entry in entries if entry.family == socket.AF_INET
    ]
    return next((address for address in addresses if not ipaddress.ip_address(address).is_loopback), None)


def test_the_first_of_several_nodes_listens_on_the_address_that_the_others_use() -> None:
    address = own_address()
    if address is None:
        pytest.skip("this machine has no interface but loopback")
    before = listening({os.getpid()})
    store = rendezvous.open_store(first_of_two_nodes(address), datetime.timedelta(seconds=1))
    assert listening({os.getpid()}) - before == {address}
    store.set("key", "value")
    assert store.get("key") == b"value"


@pytest.mark.parametrize("ranks", [1, 2])
def test_with_all_ranks_on_one_machine_nobody_else_is_listened_to(ranks: int) -> None:
    """Also where a scheduler says in MASTER_ADDR how other machines would reach this one."""
    address = own_address()
    own = RankEnvironment(0, 0, ranks, ranks, address or "192.0.2.1", free_port(), "srun")
    store = rendezvous.open_store(own, datetime.timedelta(seconds=1))
    socket.create_connection(("127.0.0.1", own.master_port), timeout=5).close()
    if address is not None:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address, own.master_port), timeout=5)
    store.set("key", "value")
    assert store.get("key") == b"value"


def test_an_address_that_is_not_this_machines_is_served_on_all_interfaces_with_a_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a service of Kubernetes, or a name that /etc/hosts has as 127.0.1.1."""
    own = first_of_two_nodes("first-node")
    lookup = socket.getaddrinfo

    def elsewhere(host: str, *rest: object, **options: object) -> object:
        return lookup("192.0.2.1" if host == "first-node" else host, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", elsewhere)
    assert rendezvous._listener(own.master_address, own.master_port) is None
    assert "listens on all of them" in capsys.readouterr().err
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **options: lookup("127.0.1.1", *rest, **options))
    assert rendezvous._listener(own.master_address, own.master_port) is None


def test_a_port_that_is_taken_is_an_error() -> None:
    own = first_of_two_nodes("127.0.0.1")
    with socket.create_server(("127.0.0.1", own.master_port)), pytest.raises(torch.distributed.DistNetworkError, match="in use"):
        rendezvous._listener("127.0.0.1", own.master_port)
