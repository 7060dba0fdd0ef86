"""`torch.distributed.distributed_c10d`: gloo process groups that share devices.

torch gives every gloo process group a separate device: a thread that wakes a hundred times a second for as long as the group
lives. megatron-core makes 20 groups, so on a CPU four waiting ranks wake 8,000 times a second. With a shared device for the 21
groups of four ranks on two cores, a waiting rank takes 0.4% of a core instead of 3.7%, and an all-reduce of 4 kB takes 4.5 ms
instead of 5.6 (torch 2.13).
"""

import contextlib
import datetime
from collections.abc import Iterator
from typing import Any

from torch.distributed import distributed_c10d

from lt_train.megatron.upstream import TORCH, Upstream, replace_within

UPSTREAM = Upstream(
    "torch.distributed.distributed_c10d",
    TORCH,
    versions=("2.11.0", "2.13.0"),
    signatures={"ProcessGroupGloo": None},
)


def count_groups_anew() -> None:
    """Let the next process group be the first again. torch counts a group that could not be made, and names groups by number.

    Ranks find each other by the names of their groups in the store.
    """
    distributed_c10d._world.group_count = 0


@contextlib.contextmanager
def share_devices(devices: Any) -> Iterator[None]:
    """Within the context, new gloo process groups use the event loops `devices`."""
    gloo = distributed_c10d.ProcessGroupGloo

    # A subclass, because torch checks whether a group is an instance of ProcessGroupGloo.
    class OnSharedDevices(gloo):  # type: ignore[misc, valid-type]
        def __init__(
            self,
            store: Any,
            rank: int,
            size: int,
            timeout: datetime.timedelta,
            *unknown: Any,
            enable_reconfigure: bool = False,
            **unknown_named: Any,
        ):
            # torch 2.15 says whether the group may take other ranks later; no group here does.
            changes_ranks = {"enable_reconfigure": True} if enable_reconfigure else {}
            UPSTREAM.refuse_unknown("ProcessGroupGloo", unknown, unknown_named | changes_ranks)
            options = gloo._Options()  # type: ignore[attr-defined]
            options._devices = devices
            # torch's number of threads for a single device.
            options._threads = 2
            options._timeout = timeout
            super().__init__(store, rank, size, options)

    with replace_within(distributed_c10d, "ProcessGroupGloo", OnSharedDevices):
        yield
