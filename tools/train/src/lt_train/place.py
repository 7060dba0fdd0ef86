"""Where this process stands among the ranks: found in the environment that a launcher left, without asking the user.

torchrun sets RANK, WORLD_SIZE and the rendezvous. srun sets SLURM_PROCID and friends for one task per rank; the first host of the
step's node list is the rendezvous, on a port derived from the job number. With neither, lt-train starts its own ranks.
"""

import dataclasses
import os
import re
from collections.abc import Mapping

from lt_shared.console import BadConfig

FIRST_SLURM_PORT = 20000
SLURM_PORTS = 20000


@dataclasses.dataclass(frozen=True)
class Place:
    """One rank: `found` says which launcher put it there."""

    rank: int
    local_rank: int
    local_ranks: int
    world_size: int
    master_address: str
    master_port: int
    found: str

    def environment(self) -> dict[str, str]:
        """The variables that torch.distributed reads."""
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_ranks),
            "WORLD_SIZE": str(self.world_size),
            "MASTER_ADDR": self.master_address,
            "MASTER_PORT": str(self.master_port),
        }


def find(environment: Mapping[str, str] = os.environ) -> Place | None:
    """The place in the environment, None when this process is no rank. Raises BadConfig for a half or malformed place."""
    try:
        return _find(environment)
    except KeyError as error:
        raise BadConfig(f"the environment describes a rank, but {error} is not set") from None
    except ValueError as error:
        raise BadConfig(f"the environment describes a rank with a malformed number: {error}") from None


def _find(environment: Mapping[str, str]) -> Place | None:
    if "RANK" in environment or "LOCAL_RANK" in environment:
        return _from_torchrun(environment)
    if int(environment.get("SLURM_STEP_NUM_TASKS", "1")) > 1 and "SLURM_PROCID" in environment:
        return _from_slurm(environment)
    return None


def _from_torchrun(environment: Mapping[str, str]) -> Place:
    needed = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in needed if name not in environment]
    if missing:
        raise BadConfig(
            f"the environment describes a rank, but {', '.join(missing)} is not set",
            "start with torchrun, with srun, or unset RANK and LOCAL_RANK to let lt-train start its own ranks",
        )
    local_rank = int(environment["LOCAL_RANK"])
    return Place(
        rank=int(environment["RANK"]),
        local_rank=local_rank,
        local_ranks=int(environment.get("LOCAL_WORLD_SIZE", local_rank + 1)),
        world_size=int(environment["WORLD_SIZE"]),
        master_address=environment["MASTER_ADDR"],
        master_port=int(environment["MASTER_PORT"]),
        found="torchrun",
    )


def _from_slurm(environment: Mapping[str, str]) -> Place:
    tasks = re.match(r"\d+", environment.get("SLURM_STEP_TASKS_PER_NODE", "1"))
    step = int(environment.get("SLURM_JOB_ID", "0")) * 7 + int(environment.get("SLURM_STEP_ID", "0"))
    return Place(
        rank=int(environment["SLURM_PROCID"]),
        local_rank=int(environment["SLURM_LOCALID"]),
        local_ranks=int(tasks[0]) if tasks else 1,
        world_size=int(environment["SLURM_STEP_NUM_TASKS"]),
        master_address=environment.get("MASTER_ADDR") or first_host(environment["SLURM_STEP_NODELIST"]),
        master_port=int(environment.get("MASTER_PORT") or FIRST_SLURM_PORT + step % SLURM_PORTS),
        found="srun",
    )


def first_host(node_list: str) -> str:
    """The first host of Slurm's compressed list: "gpu[003-004,7],x1" is gpu003."""
    first = re.match(r"([^,\[]+)(?:\[([^\]]+)\])?([^,\[]*)", node_list)
    if not first:
        raise BadConfig(f"cannot read the node list {node_list!r}", "set MASTER_ADDR")
    prefix, ranges, suffix = first.groups()
    return prefix + (re.split(r"[-,]", ranges)[0] if ranges else "") + suffix
