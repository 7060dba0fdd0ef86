"""All ranks meet, or those that do not come are named.

The process group's own time limit must be longer than the watchdog's, and would be that of a rank which never comes, too: an hour
by default. So the ranks first meet in the key-value store, within the time limit of a step.
"""

import contextlib
import datetime
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.rendezvous import rendezvous

from lt_shared.console import ExitCode, Unavailable
from lt_train.runtime import device, watchdog
from lt_train.runtime.rank_environment import RankEnvironment, shown

# What the communication libraries wait beyond the watchdog.
LATER_SECONDS = 60.0
# Ranks import torch and megatron-core at speeds of their own.
LEAST_SECONDS = 120.0
KEY = "lt-train/joined"


def join(rank_env: RankEnvironment, where: torch.device, timeout_seconds: float) -> None:
    """Make the process group of all ranks. Raises Unavailable in rank 0 when others do not come; those that came end silently."""
    device.communicate_on_loopback(rank_env)
    joining = datetime.timedelta(seconds=max(timeout_seconds, LEAST_SECONDS))
    # The variables of `RankEnvironment.environment`; torchrun adds one that says that its own store is to be used.
    store, _, _ = next(rendezvous("env://", timeout=joining))
    meet(store, rank_env, joining)
    # Longer than the watchdog's, which knows more.
    timeout = datetime.timedelta(seconds=watchdog.SLOW * timeout_seconds + LATER_SECONDS)
    store.set_timeout(timeout)
    torch.distributed.init_process_group(
        backend=device.BACKENDS[where.type],
        store=store,
        rank=rank_env.rank,
        world_size=rank_env.world_size,
        device_id=where if where.type == device.CUDA else None,
        timeout=timeout,
    )


@contextlib.contextmanager
def connecting_when_used() -> Iterator[None]:
    """Process groups made within are connected when they first send something.

    A process group that has a device has others connected when they are made. megatron-core makes 20, of which a run uses a few,
    and each takes 0.38 GiB of an H200's memory.
    """
    everyone = torch.distributed.group.WORLD
    assert everyone is not None
    bound, everyone.bound_device_id = everyone.bound_device_id, None
    try:
        yield
    finally:
        everyone.bound_device_id = bound


def meet(store: Any, rank_env: RankEnvironment, joining: datetime.timedelta) -> None:
    """Wait until all ranks have called this. Raises as `join`."""
    store.set(f"{KEY}/{rank_env.rank}", "")
    if store.add(KEY, 1) == rank_env.world_size:
        store.set(f"{KEY}/all", "")
    try:
        store.wait([f"{KEY}/all"], joining)
    except torch.distributed.DistStoreError:
        if rank_env.rank:
            raise SystemExit(ExitCode.UNAVAILABLE) from None
        missing = [rank for rank in range(rank_env.world_size) if not store.check([f"{KEY}/{rank}"])]
        minutes = joining.total_seconds() / 60
        raise Unavailable(
            f"of {rank_env.world_size} ranks, number {shown(missing)} did not come within {minutes:g} minutes",
            "see what they say, and whether their nodes reach this one: srun lt-train preflight --network",
        ) from None
