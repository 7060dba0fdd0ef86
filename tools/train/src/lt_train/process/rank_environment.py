"""Read the rank, world size and rendezvous of this process from its launcher's environment variables.

| in the environment | this process is |
|---|---|
| torchrun's LOCAL_RANK | a rank |
| a step of srun, mpirun or another launcher of MPI programs, with several tasks on a node | a rank |
| a step of srun, or mpirun, with a task on each node; a pod of a PyTorchJob or TrainJob | a node, where lt-train starts ranks |
| signs of other processes in the job, but not their number | refused: each would train alone |
| a rank of a torchrun that has fewer ranks than the job has processes | refused: each torchrun would train alone |
| no such variable | alone: lt-train starts all ranks here |

With one task per node, a job script needs no torchrun and no number of GPUs; with one task per GPU, Slurm binds cores to ranks.
The rendezvous is the first host of the step's node list, on a port derived from the job number, so that two jobs that share a
node do not meet.
"""

import dataclasses
import os
import re
import socket
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Self

from lt_shared.console import BadConfig, Unavailable
from lt_train.process import process_lifetime
from lt_train.process.launchers import job_identity, job_nodes
from lt_train.process.launchers.variables import (
    LAUNCHERS,
    MPIEXEC,
    REMEDY,
    TORCHRUN_VARIABLES,
    Variables,
    check_alone,
    check_whole,
    first_number,
    read_count,
    read_local_size,
    read_number,
    read_text,
    variable_pattern,
)

FIRST_PORT = 20000
PORTS = 20000
LAST_PORT = 65535
LOOPBACK = "127.0.0.1"
KUBERNETES = "Kubernetes"
# Time for another node to load the image.
POD_SECONDS = 600.0
POLL_SECONDS = 2.0
SHOWN = 16
# torchrun's own default, which the operators of Kubernetes use as well.
TORCH_PORT = 29500
# The ranges of numbers in Slurm's host lists.
RANGES = r"\[\d+(?:[-,]\d+)*\]"


@dataclasses.dataclass(frozen=True)
class RankEnvironment:
    """The numbers of a rank as torch.distributed counts them. `launcher` names their source: srun, torchrun and so on."""

    rank: int
    local_rank: int
    local_world_size: int
    world_size: int
    master_address: str
    master_port: int
    launcher: str

    @classmethod
    def from_variables(cls, variables: Mapping[str, str]) -> Self:
        """Return the rank that lt-train describes with the result of `variables`."""
        names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "MASTER_PORT")
        rank, local_rank, local_world_size, world_size, port = (int(variables[name]) for name in names)
        return cls(rank, local_rank, local_world_size, world_size, variables["MASTER_ADDR"], port, "lt-train")

    @property
    def is_mpi_on_one_machine(self) -> bool:
        """Whether a launcher of MPI programs has started all ranks on this machine."""
        is_mpi = any(self.launcher == variables.launcher for variables in LAUNCHERS)
        return is_mpi and self.local_world_size == self.world_size

    @property
    def described(self) -> str:
        return f"{self.world_size} ranks found in the environment of {self.launcher}"

    def variables(self) -> dict[str, str]:
        """Return the variables that torch.distributed reads."""
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "WORLD_SIZE": str(self.world_size),
            "MASTER_ADDR": self.master_address,
            "MASTER_PORT": str(self.master_port),
        }


@dataclasses.dataclass(frozen=True)
class Node:
    """A node with a single lt-train from a launcher; lt-train starts the node's ranks.

    `ranks` is the number of ranks per node that the launcher requests, None if it leaves the number to lt-train.
    """

    node_rank: int
    nodes: int
    ranks: int | None
    master_address: str
    master_port: int
    launcher: str

    @property
    def described(self) -> str:
        rendezvous = f"{self.master_address}:{self.master_port}"
        return f"{self.nodes} node(s) found in the environment of {self.launcher}, rendezvous {rendezvous}"

    def rank_environment(self, local_rank: int, local_world_size: int) -> RankEnvironment:
        """Return the environment of a rank that lt-train starts on this node. All nodes have `local_world_size` ranks."""
        return RankEnvironment(
            rank=self.node_rank * local_world_size + local_rank,
            local_rank=local_rank,
            local_world_size=local_world_size,
            world_size=self.nodes * local_world_size,
            master_address=self.master_address,
            master_port=self.master_port,
            launcher="lt-train",
        )


def find(environment: Mapping[str, str] = os.environ) -> RankEnvironment | None:
    """Return the environment of a rank, None if this process is no rank. Raises BadConfig if it is incomplete or malformed."""
    rank_env = _read_checked(environment)
    return rank_env if isinstance(rank_env, RankEnvironment) else None


def find_node(environment: Mapping[str, str] = os.environ) -> Node | None:
    """Return the node whose ranks lt-train has to start; None for a rank, or without a launcher. Raises as `find`."""
    node = _read_checked(environment)
    return node if isinstance(node, Node) else None


def format_ranks(numbers: Sequence[int]) -> str:
    """Format the numbers of ranks for a message, at most `SHOWN`."""
    return ", ".join(map(str, numbers[:SHOWN])) + (" and more" if len(numbers) > SHOWN else "")


def check_rendezvous(rank_or_node: RankEnvironment | Node) -> None:
    """Raises BadConfig if the rendezvous host has no address, because the ranks would look for it in silence until they time out.

    A pod's name has an address after the pod has been scheduled, perhaps later than the job's other pods. So the other pods wait,
    and raise Unavailable.
    """
    is_pod = rank_or_node.launcher == KUBERNETES
    deadline = time.monotonic() + (POD_SECONDS if is_pod else 0.0)
    while True:
        try:
            socket.getaddrinfo(rank_or_node.master_address, None)
            return
        except OSError as error:
            message = f"the rendezvous {rank_or_node.master_address} has no address on {socket.gethostname()}: {error.strerror}"
        if time.monotonic() >= deadline:
            break
        time.sleep(POLL_SECONDS)
    if is_pod:
        raise Unavailable(message, "see whether the first pod of the job has been scheduled: kubectl get pods")
    raise BadConfig(message, "set MASTER_ADDR to an address of the first node")


def _read_checked(environment: Mapping[str, str]) -> RankEnvironment | Node | None:
    rank_or_node = _read(environment)
    if isinstance(rank_or_node, RankEnvironment):
        _check_count("rank", rank_or_node.rank, rank_or_node.world_size)
        _check_count("local rank", rank_or_node.local_rank, rank_or_node.local_world_size)
    elif rank_or_node is not None:
        _check_count("node", rank_or_node.node_rank, rank_or_node.nodes)
    if rank_or_node is not None and not 0 < rank_or_node.master_port <= LAST_PORT:
        raise BadConfig(f"MASTER_PORT={rank_or_node.master_port} is no port", f"set one between 1024 and {LAST_PORT}, or none")
    return rank_or_node


def _check_count(what: str, number: int, count: int) -> None:
    """Raises BadConfig if a rank is not below the world size, because it would wait for other ranks until it times out."""
    if not 0 <= number < count:
        raise BadConfig(
            f"the environment describes {what} {number} of {count}", "unset the variables that another launcher has left"
        )


def _read(environment: Mapping[str, str]) -> RankEnvironment | Node | None:
    if "LOCAL_RANK" in environment:
        return _from_torchrun(environment)
    if "PET_NNODES" in environment:
        return _from_kubernetes(environment)
    if "RANK" in environment:
        return _from_torchrun(environment)
    for variables in LAUNCHERS:
        size = first_number(environment, variables.size, 1)
        # srun sets PMI's variables, too. If the sizes differ, mpiexec has started itself by srun, with a task on each node.
        if size > 1 and not (variables.launcher == MPIEXEC and size == _step_size(environment)):
            return _from_mpi(environment, variables)
    if "SLURM_PROCID" in environment and _step_size(environment) > 1:
        return _from_slurm(environment)
    check_alone(environment)
    job_nodes.check_alone(environment)
    return None


def _step_size(environment: Mapping[str, str]) -> int:
    return read_number(environment, "SLURM_STEP_NUM_TASKS", 1) if "SLURM_PROCID" in environment else 1


def _from_torchrun(environment: Mapping[str, str]) -> RankEnvironment:
    missing = [name for name in TORCHRUN_VARIABLES if name not in environment]
    if missing:
        raise BadConfig(
            f"the environment describes a rank, but {', '.join(missing)} is not set",
            "start with torchrun, with srun, or unset RANK and LOCAL_RANK to let lt-train start its own ranks",
        )
    local_rank, world_size = read_number(environment, "LOCAL_RANK"), read_number(environment, "WORLD_SIZE")
    local_world_size = read_number(environment, "LOCAL_WORLD_SIZE", local_rank + 1)
    if process_lifetime.PARENT_VARIABLE not in environment:
        # lt-train has checked the job at its start. Its ranks may be on fewer nodes: other nodes are spare or lost.
        check_whole(environment, world_size)
        job_nodes.check_whole(environment, world_size, local_world_size)
    return RankEnvironment(
        rank=read_number(environment, "RANK"),
        local_rank=local_rank,
        local_world_size=local_world_size,
        world_size=world_size,
        master_address=environment["MASTER_ADDR"],
        master_port=read_number(environment, "MASTER_PORT"),
        launcher="torchrun",
    )


def _from_kubernetes(environment: Mapping[str, str]) -> Node:
    """Read torchrun's variables, which the operators for PyTorchJob and TrainJob set. If they set RANK, too, it counts pods."""
    if "PET_MASTER_ADDR" not in environment or not environment["PET_NNODES"].isdigit():
        raise BadConfig(
            f"an elastic job (PET_NNODES={environment['PET_NNODES']}): only torchrun follows a number of nodes that changes",
            "drop the job's elasticPolicy, or start the ranks with `torchrun -m lt_train`",
        )
    ranks = environment.get("PET_NPROC_PER_NODE", "auto")
    return Node(
        node_rank=read_number(environment, "PET_NODE_RANK"),
        nodes=read_number(environment, "PET_NNODES"),
        # A value without digits is "auto", "gpu" or "cpu".
        ranks=int(ranks) if ranks.isdigit() else None,
        master_address=environment["PET_MASTER_ADDR"],
        master_port=read_number(environment, "PET_MASTER_PORT", TORCH_PORT),
        launcher=KUBERNETES,
    )


def _from_mpi(environment: Mapping[str, str], variables: Variables) -> RankEnvironment | Node:
    """Read the variables of a launcher of MPI programs.

    These launchers do not tell a process the host of the first process. It is needed only if the processes are on several nodes.
    """
    rank, size = read_count(environment, variables, variables.rank), read_count(environment, variables, variables.size)
    local_size = read_local_size(environment, variables, size)
    address = environment.get("MASTER_ADDR") or (LOOPBACK if local_size == size else None)
    if address is None:
        raise BadConfig(
            f"{variables.launcher} started {size} processes ({variables.assignments(environment)}), and MASTER_ADDR does not say"
            " on which host the first of them is",
            variables.pass_address,
        )
    name_job = job_identity.job_on_host if local_size == size else job_identity.job_on_all_hosts
    # The CRC of no name is 0: jobs without one meet on the first port.
    port = read_number(environment, "MASTER_PORT", FIRST_PORT + zlib.crc32(name_job(environment, variables).encode()) % PORTS)
    if local_size == 1:
        return Node(rank, size, None, address, port, variables.launcher)
    local_rank = read_count(environment, variables, variables.local_rank)
    return RankEnvironment(rank, local_rank, local_size, size, address, port, variables.launcher)


def _from_slurm(environment: Mapping[str, str]) -> RankEnvironment | Node:
    tasks_variable = "SLURM_STEP_TASKS_PER_NODE" if "SLURM_STEP_TASKS_PER_NODE" in environment else "SLURM_STEP_NUM_TASKS"
    try:
        tasks = tasks_per_node(environment[tasks_variable])
    except ValueError:
        raise BadConfig(
            f"cannot read {tasks_variable}={environment[tasks_variable]!r}", REMEDY.format(variable_pattern(tasks_variable))
        ) from None
    step = read_number(environment, "SLURM_JOB_ID", 0) * 7 + read_number(environment, "SLURM_STEP_ID", 0)
    address = environment.get("MASTER_ADDR") or first_host(read_text(environment, "SLURM_STEP_NODELIST"))
    port = read_number(environment, "MASTER_PORT", FIRST_PORT + step % PORTS)
    rank, size = read_number(environment, "SLURM_PROCID"), read_number(environment, "SLURM_STEP_NUM_TASKS")
    if set(tasks) == {1}:
        return Node(rank, size, None, address, port, "srun")
    local_world_size = tasks[min(read_number(environment, "SLURM_NODEID", 0), len(tasks) - 1)]
    return RankEnvironment(rank, read_number(environment, "SLURM_LOCALID"), local_world_size, size, address, port, "srun")


def tasks_per_node(text: str) -> list[int]:
    """Expand Slurm's compressed list of a step's tasks per node: "2(x3),1" is [2, 2, 2, 1]. Raises ValueError."""
    counts = []
    for part in text.split(","):
        matched = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if not matched:
            raise ValueError(text)
        counts += [int(matched[1])] * int(matched[2] or 1)
    return counts


def first_host(node_list: str) -> str:
    """Return the first host in Slurm's compressed list: "gpu[003-004,7],x1" is gpu003, "rack[1-2]node[3-4]" is rack1node3."""
    first = re.match(rf"((?:[^,\[\]\s]|{RANGES})+)(?:,|$)", node_list)
    if not first:
        raise BadConfig(f"cannot read the node list SLURM_STEP_NODELIST={node_list!r}", "set MASTER_ADDR to the first node")
    return re.sub(RANGES, lambda ranges: re.split(r"[-,]", ranges[0][1:-1])[0], first[1])
