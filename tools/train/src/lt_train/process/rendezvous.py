"""Let all ranks meet, and name the ranks that are missing.

The process group's time limit must be longer than the watchdog's: an hour by default. It would pass before a missing rank is
reported. So the ranks first meet in the key-value store, within the time limit of a step.

The store has no authentication: anyone who reaches it can end the run, and torch unpickles some of the ranks' messages. So it
listens on loopback if all ranks are on one machine, and otherwise on the address of MASTER_ADDR alone, if the address belongs to
this machine. torch's store listens on all interfaces.
"""

import contextlib
import datetime
import functools
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore
from torch.distributed.rendezvous import rendezvous

from lt_shared.console import BadConfig, ExitCode, Unavailable
from lt_train.megatron import distributed_c10d
from lt_train.process import device, interruption, ports, watchdog
from lt_train.process.rank_environment import LOOPBACK, RankEnvironment, format_ranks

# Communication libraries time out this much later than the watchdog.
LATER_SECONDS = 60.0
# Ranks import torch and megatron-core at different speeds.
LEAST_SECONDS = 120.0
KEY = "lt-train/joined"
POLL_SECONDS = 0.5
CONNECT_SECONDS = 5.0
CONNECT_POLL_SECONDS = 0.1
# For the other ranks to read why they end, before rank 0 ends and its store with it.
READING = datetime.timedelta(seconds=10)


def join(rank_env: RankEnvironment, local_device: torch.device, timeout_seconds: float, digests: Mapping[str, str]) -> None:
    """Make the global process group. The other ranks end silently if rank 0 raises an error.

    Rank 0 raises Unavailable if ranks are missing, and BadConfig if `digests` of the configuration differ between ranks.
    """
    device.communicate_on_loopback(rank_env)
    joining = datetime.timedelta(seconds=max(timeout_seconds, LEAST_SECONDS))
    store = open_own_store(rank_env, joining)
    meet(store, rank_env, joining, digests)
    # Longer than the watchdog's limit, because the watchdog reports more.
    timeout = datetime.timedelta(seconds=watchdog.SLOW * timeout_seconds + LATER_SECONDS)
    store.set_timeout(timeout)
    torch.distributed.init_process_group(
        backend=device.BACKENDS[local_device.type],
        store=store,
        rank=rank_env.rank,
        world_size=rank_env.world_size,
        device_id=local_device if local_device.type == device.CUDA else None,
        timeout=timeout,
    )


def open_own_store(rank_env: RankEnvironment, timeout: datetime.timedelta) -> Any:
    """Open the store of this attempt and register this rank. Raise as `open_store`, and Unavailable.

    A rank that restarts alone, as in a pod, may be back before rank 0 of the previous attempt has ended.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    while (store := open_store(rank_env, timeout)).add(f"{KEY}/starts/{rank_env.rank}", 1) > 1:
        if time.monotonic() > deadline:
            endpoint = f"{rank_env.master_address}:{rank_env.master_port}"
            raise Unavailable(f"{endpoint} has a rank {rank_env.rank} already", "see whether two runs have the same rendezvous")
        time.sleep(POLL_SECONDS)
    return store


def open_store(rank_env: RankEnvironment, timeout: datetime.timedelta) -> Any:
    """Open the ranks' key-value store. Rank 0 serves it, or torchrun.

    Raises DistNetworkError, also if the port is taken.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True):
        return next(rendezvous("env://", timeout=timeout))[0]
    is_one_machine = rank_env.local_world_size == rank_env.world_size
    host = LOOPBACK if is_one_machine else rank_env.master_address
    serving: dict[str, Any] = {"is_master": rank_env.rank == 0}
    if rank_env.rank == 0 and (listener := _listener(host, rank_env.master_port)):
        serving["master_listen_fd"] = listener.detach()
    elif interruption.is_allowed():
        # torch's constructor waits for rank 0 and cannot be interrupted.
        _wait_for_listener(host, rank_env.master_port, timeout)
    # `meet` waits for the other ranks and names the missing ones.
    return TCPStore(host, rank_env.master_port, rank_env.world_size, timeout=timeout, wait_for_workers=False, **serving)


def _listener(host: str, port: int) -> socket.socket | None:
    """Return the socket of `ports.bind`. Raises DistNetworkError, as the store does."""
    try:
        return ports.bind(host, port)
    except OSError as error:
        raise torch.distributed.DistNetworkError(f"{host}:{port}: {error.strerror}") from error


def _wait_for_listener(host: str, port: int, timeout: datetime.timedelta) -> None:
    """Wait until rank 0 listens, or `timeout` has passed. Raises Echo if this rank is interrupted."""
    deadline = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < deadline:
        interruption.check()
        with contextlib.suppress(OSError), socket.create_connection((host, port), CONNECT_SECONDS):
            return
        time.sleep(CONNECT_POLL_SECONDS)


def interruptible_waits(rank_env: RankEnvironment) -> contextlib.AbstractContextManager[None]:
    """Within the context, an interruption of this rank ends its waits for the ranks' store. Raises Echo.

    A rank that is killed before all groups are connected leaves the other ranks waiting for its keys in the store, in C++.
    """
    return interruption.ending_waits(functools.partial(ports.shut_down_connections, rank_env.master_port))


@contextlib.contextmanager
def connect_when_used() -> Iterator[None]:
    """Within the context, new process groups connect at their first message.

    If a process group has a device, torch connects its subgroups at once. megatron-core makes 20 groups, but a run uses few of
    them, and each connected group takes 0.38 GiB of an H200's memory.
    """
    everyone = torch.distributed.group.WORLD
    assert everyone is not None
    bound, everyone.bound_device_id = everyone.bound_device_id, None
    try:
        yield
    finally:
        everyone.bound_device_id = bound


@contextlib.contextmanager
def share_gloo_devices() -> Iterator[None]:
    """Within the context, new gloo process groups share the event loop of the default group if that is a gloo group."""
    everyone = torch.distributed.group.WORLD
    assert everyone is not None
    if torch.distributed.get_backend(everyone) != device.BACKENDS[device.CPU]:
        yield
        return
    devices = everyone._get_backend(torch.device(device.CPU)).options._devices  # type: ignore[attr-defined]
    with distributed_c10d.share_devices(devices):
        yield


def meet(store: Any, rank_env: RankEnvironment, joining: datetime.timedelta, digests: Mapping[str, str]) -> None:
    """Wait until all ranks have called this function, and compare their `digests`. Raise as `join`."""
    store.set(f"{KEY}/{rank_env.rank}", json.dumps([socket.gethostname(), digests]))
    if store.add(KEY, 1) == rank_env.world_size:
        store.set(f"{KEY}/all", _difference(store, rank_env.world_size))
    try:
        store.wait([f"{KEY}/all"], joining)
    except torch.distributed.DistStoreError:
        if rank_env.rank:
            raise SystemExit(ExitCode.UNAVAILABLE) from None
        missing = [rank for rank in range(rank_env.world_size) if not store.check([f"{KEY}/{rank}"])]
        minutes = joining.total_seconds() / 60
        raise Unavailable(
            f"of {rank_env.world_size} ranks, number {format_ranks(missing)} did not come within {minutes:g} minutes",
            "see what they say, and whether their nodes reach this one: srun lt-train preflight --network",
        ) from None
    difference = store.get(f"{KEY}/all").decode()
    if difference and rank_env.rank:
        if store.add(f"{KEY}/read", 1) == rank_env.world_size - 1:
            store.set(f"{KEY}/all-read", "")
        raise SystemExit(ExitCode.BAD_CONFIG)
    if difference:
        with contextlib.suppress(torch.distributed.DistStoreError):
            store.wait([f"{KEY}/all-read"], READING)
        raise BadConfig(
            difference,
            "start all ranks of a run with one command; two runs on one machine need a MASTER_PORT each",
        )


def _difference(store: Any, ranks: int) -> str:
    """Describe the first rank whose settings differ from rank 0's; empty if there is none."""
    (first_host, first_digests), *answers = map(json.loads, store.multi_get([f"{KEY}/{rank}" for rank in range(ranks)]))
    for rank, (host, digests) in enumerate(answers, 1):
        parts = [part for part in first_digests if digests.get(part) != first_digests[part]]
        if parts:
            return f"rank {rank} on {host} has other settings than rank 0 on {first_host}: {', '.join(parts)}"
    return ""
