"""Refuse to train alone in a process that a scheduler started as one of several, and print the command that starts a node."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from lt_shared.console import BadConfig
from lt_train.process.launchers.variables import NODE_SCHEDULERS

# Lists of hosts in JSON: SageMaker's, and the clusters of Vertex AI and TensorFlow.
SAGEMAKER_HOSTS, SAGEMAKER_HOST = "SM_HOSTS", "SM_CURRENT_HOST"
CLUSTERS = {"CLUSTER_SPEC": "Vertex AI", "TF_CONFIG": "TensorFlow's TF_CONFIG"}


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
    """Yield the memberships that the environment describes. Variables without a number or without valid JSON are skipped."""
    for variables in NODE_SCHEDULERS:
        index = _number(environment, variables.rank)
        if index is not None:
            names = tuple(name for name in (*variables.rank, *variables.size) if environment.get(name))
            address = next((environment[name] for name in variables.address if environment.get(name)), "").split("\n")[0]
            count = _number(environment, variables.size)
            yield Membership(variables.launcher, index, count, address, names, variables.assignments(environment))
    hosts = _parsed(environment, SAGEMAKER_HOSTS)
    if isinstance(hosts, list) and hosts:
        host = environment.get(SAGEMAKER_HOST, "")
        index = hosts.index(host) if host in hosts else 0
        names = tuple(name for name in (SAGEMAKER_HOSTS, SAGEMAKER_HOST) if environment.get(name))
        described = f"{SAGEMAKER_HOSTS} has {len(hosts)} hosts, {SAGEMAKER_HOST}={host:.40}"
        yield Membership("SageMaker", index, len(hosts), str(hosts[0]), names, described)
    for name, launcher in CLUSTERS.items():
        if membership := _cluster_membership(_parsed(environment, name), name, launcher):
            yield membership


def check_alone(environment: Mapping[str, str]) -> None:
    """Raise BadConfig if a scheduler started this process as one of several: each would train alone."""
    for membership in memberships(environment):
        if not membership.is_alone:
            raise BadConfig(
                f"{membership.launcher} started this process as one of {membership.count or 'several'}"
                f" ({membership.described}), and lt-train does not read where they meet: each would train alone",
                _remedy(membership),
            )


def check_whole(environment: Mapping[str, str], world_size: int, local_world_size: int) -> None:
    """Raise BadConfig if all of torchrun's ranks are on this node, and the job has more nodes: each would train alone."""
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
    host_note = "" if membership.address else ", HOST being the first host"
    return f"for one process on each node: {as_node}{host_note}; for a process that is alone: env {_unset(membership)} {command}"


def _unset(membership: Membership) -> str:
    return " ".join(f"-u {name}" for name in membership.names)


def _cluster_membership(content: Any, name: str, launcher: str) -> Membership | None:
    """Read a TensorFlow cluster: lists of addresses by task type, and the type and index of this process's task."""
    cluster = content.get("cluster") if isinstance(content, dict) else None
    if not isinstance(cluster, dict):
        return None
    addresses = [(kind, number, str(one)) for kind, tasks in cluster.items() for number, one in enumerate(_as_list(tasks))]
    if not addresses:
        return None
    task = content.get("task") if isinstance(content.get("task"), dict) else {}
    kind, number = str(task.get("type", "")), str(task.get("index", ""))
    places = [place for place, (other, index, _) in enumerate(addresses) if (other, str(index)) == (kind, number)]
    described = f"{name}: {kind:.40} {number:.40} of {len(addresses)} processes"
    index = places[0] if places else 0
    return Membership(launcher, index, len(addresses), addresses[0][2].rpartition(":")[0], (name,), described)


def _as_list(addresses: Any) -> list[Any]:
    return addresses if isinstance(addresses, list) else list(addresses.values()) if isinstance(addresses, dict) else []


def _number(environment: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    text = next((environment[name] for name in names if environment.get(name)), "").strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _parsed(environment: Mapping[str, str], name: str) -> Any:
    try:
        return json.loads(environment.get(name) or "null")
    except (ValueError, RecursionError):
        return None
