"""Schedulers that start one process on each node of a job, and launchers whose rendezvous lt-train does not know.

Their variables number a process and count all of them, and no two schedulers say alike where the first one listens. lt-train
refuses to train alone then, and says how the same process starts as a node.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from lt_shared.console import BadConfig

# Lists of hosts in JSON: SageMaker's, and the clusters of Vertex AI and TensorFlow.
SAGEMAKER_HOSTS, SAGEMAKER_HOST = "SM_HOSTS", "SM_CURRENT_HOST"
CLUSTERS = {"CLUSTER_SPEC": "Vertex AI", "TF_CONFIG": "TensorFlow's TF_CONFIG"}


@dataclasses.dataclass(frozen=True)
class Numbering:
    """The variables in which a scheduler numbers its processes. Of several names, the first that is set counts."""

    launcher: str
    index: tuple[str, ...]
    count: tuple[str, ...] = ()
    address: tuple[str, ...] = ()


NUMBERINGS = (
    Numbering("poe", ("MP_CHILD",), ("MP_PROCS",)),
    Numbering("Platform MPI", ("MPI_RANKID",), ("MPI_NRANKS",)),
    Numbering("mpirun", ("MPIRUN_RANK",), ("MPIRUN_NPROCS",)),
    Numbering("horovodrun", ("HOROVOD_RANK",), ("HOROVOD_SIZE",), ("HOROVOD_GLOO_RENDEZVOUS_ADDR",)),
    Numbering("Paddle's launcher", ("PADDLE_TRAINER_ID",), ("PADDLE_TRAINERS_NUM",)),
    Numbering("JAX's launcher", ("JAX_PROCESS_ID",), ("JAX_NUM_PROCESSES",)),
    Numbering(
        "AWS Batch",
        ("AWS_BATCH_JOB_NODE_INDEX",),
        ("AWS_BATCH_JOB_NUM_NODES",),
        ("AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS",),
    ),
    Numbering("SkyPilot", ("SKYPILOT_NODE_RANK",), ("SKYPILOT_NUM_NODES",), ("SKYPILOT_NODE_IPS",)),
    Numbering("dstack", ("DSTACK_NODE_RANK",), ("DSTACK_NODES_NUM",), ("DSTACK_MASTER_NODE_IP",)),
    Numbering("Beaker", ("BEAKER_REPLICA_RANK",), ("BEAKER_REPLICA_COUNT",), ("BEAKER_LEADER_REPLICA_HOSTNAME",)),
    Numbering("Metaflow", ("MF_PARALLEL_NODE_INDEX",), ("MF_PARALLEL_NUM_NODES",), ("MF_PARALLEL_MAIN_IP",)),
    Numbering("a LeaderWorkerSet", ("LWS_WORKER_INDEX",), ("LWS_GROUP_SIZE",), ("LWS_LEADER_ADDRESS",)),
    Numbering("pbsdsh", ("PBS_NODENUM",)),
    Numbering("accelerate", ("MACHINE_RANK",), ("NUM_MACHINES",), ("MAIN_PROCESS_IP", "MASTER_ADDR")),
    # Names that scripts around torchrun have, and Lightning, MosaicML and Azure ML.
    Numbering("a launcher", ("NODE_RANK",), ("NNODES", "NUM_NODES", "NODE_COUNT"), ("MASTER_ADDR",)),
)


@dataclasses.dataclass(frozen=True)
class Membership:
    """The number of this process in its job; `count` is None if no variable counts the processes. `names` are the variables."""

    launcher: str
    index: int
    count: int | None
    address: str
    names: tuple[str, ...]
    described: str

    @property
    def is_alone(self) -> bool:
        return self.index == 0 and self.count in (None, 1)


def memberships(environment: Mapping[str, str]) -> Iterator[Membership]:
    """The jobs that the environment describes. Variables that hold no number or no JSON describe none."""
    for numbering in NUMBERINGS:
        index = _number(environment, numbering.index)
        if index is not None:
            names = tuple(name for name in (*numbering.index, *numbering.count) if environment.get(name))
            address = next((environment[name] for name in numbering.address if environment.get(name)), "").split("\n")[0]
            described = ", ".join(f"{name}={environment[name]:.40}" for name in names)
            yield Membership(numbering.launcher, index, _number(environment, numbering.count), address, names, described)
    hosts = _parsed(environment, SAGEMAKER_HOSTS)
    if isinstance(hosts, list) and hosts:
        host = environment.get(SAGEMAKER_HOST, "")
        index = hosts.index(host) if host in hosts else 0
        names = tuple(name for name in (SAGEMAKER_HOSTS, SAGEMAKER_HOST) if environment.get(name))
        described = f"{SAGEMAKER_HOSTS} has {len(hosts)} hosts, {SAGEMAKER_HOST}={host:.40}"
        yield Membership("SageMaker", index, len(hosts), str(hosts[0]), names, described)
    for name, launcher in CLUSTERS.items():
        if membership := _of_cluster(_parsed(environment, name), name, launcher):
            yield membership


def check_alone(environment: Mapping[str, str]) -> None:
    """Raises BadConfig for one of several processes of a job: each of them would train alone."""
    for membership in memberships(environment):
        if not membership.is_alone:
            raise BadConfig(
                f"{membership.launcher} started this process as one of {membership.count or 'several'}"
                f" ({membership.described}), and lt-train does not read where they meet: each would train alone",
                _remedy(membership),
            )


def check_whole(environment: Mapping[str, str], world_size: int, local_world_size: int) -> None:
    """Raises BadConfig if torchrun has all of its ranks on this node, and the job has more nodes: each would train alone."""
    for membership in memberships(environment):
        count = membership.count or 1
        if count > world_size or (count > 1 and local_world_size == world_size and "LOCAL_WORLD_SIZE" in environment):
            raise BadConfig(
                f"torchrun made a run of {world_size} rank(s) in one of {count} processes of {membership.launcher}"
                f" ({membership.described}): each would train alone",
                f"torchrun --nnodes {count} --rdzv-backend c10d --rdzv-endpoint HOST:29500 ..., HOST being the first host; for a"
                f" process that is alone: env {_unset(membership)} torchrun ...",
            )


def _remedy(membership: Membership) -> str:
    count, address = membership.count or "COUNT", membership.address or "HOST"
    command = "lt-train ..."
    as_node = f"PET_NNODES={count} PET_NODE_RANK={membership.index} PET_MASTER_ADDR={address} {command}"
    first = "" if membership.address else ", HOST being the first host"
    return f"for one process on each node: {as_node}{first}; for a process that is alone: env {_unset(membership)} {command}"


def _unset(membership: Membership) -> str:
    return " ".join(f"-u {name}" for name in membership.names)


def _of_cluster(content: Any, name: str, launcher: str) -> Membership | None:
    """The process in a cluster of TensorFlow's kind: lists of addresses by type of task, and the task that this process is."""
    cluster = content.get("cluster") if isinstance(content, dict) else None
    if not isinstance(cluster, dict):
        return None
    addresses = [(kind, number, str(one)) for kind, of_kind in cluster.items() for number, one in enumerate(_listed(of_kind))]
    if not addresses:
        return None
    task = content.get("task") if isinstance(content.get("task"), dict) else {}
    kind, number = str(task.get("type", "")), str(task.get("index", ""))
    places = [place for place, (other, index, _) in enumerate(addresses) if (other, str(index)) == (kind, number)]
    described = f"{name}: {kind:.40} {number:.40} of {len(addresses)} processes"
    index = places[0] if places else 0
    return Membership(launcher, index, len(addresses), addresses[0][2].rpartition(":")[0], (name,), described)


def _listed(addresses: Any) -> list[Any]:
    return addresses if isinstance(addresses, list) else list(addresses.values()) if isinstance(addresses, dict) else []


def _number(environment: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    text = next((environment[name] for name in names if environment.get(name)), "").strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _parsed(environment: Mapping[str, str], name: str) -> Any:
    try:
        return json.loads(environment.get(name) or "null")
    except (ValueError, RecursionError):
        return None
