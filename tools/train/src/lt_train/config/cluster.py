"""Describe GPUs and clusters for a plan: memory, compute capability, and the number of nodes and ranks.

Memory is the total that the driver shows, a few percent less than the GPU's name says.
"""

import dataclasses
from typing import Any

import click

from lt_shared import console
from lt_train.process import device, rank_environment

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Gpu:
    """`capability` is CUDA's compute capability, None for a CPU's share of the host's memory."""

    name: str
    memory_bytes: int
    capability: tuple[int, int] | None


def _gpu(name: str, gib: float, *capability: int) -> Gpu:
    return Gpu(name, int(gib * GIB), (capability[0], capability[1]))


GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("b200-180gb", 178, 10, 0),
        _gpu("h200-141gb", 140, 9, 0),
        _gpu("h100-80gb", 79.6, 9, 0),
        _gpu("a100-80gb", 79.6, 8, 0),
        _gpu("a100-40gb", 40, 8, 0),
        _gpu("l40s-48gb", 45, 8, 9),
        _gpu("a10g-24gb", 22.5, 8, 6),
        _gpu("l4-24gb", 22.5, 8, 9),
        _gpu("v100-32gb", 31.7, 7, 0),
        _gpu("v100-16gb", 15.8, 7, 0),
        _gpu("t4-16gb", 15, 7, 5),
    )
}


class GpuName(click.Choice):  # type: ignore[type-arg]  # generic since click 8.2
    """A name in `GPUS`, in upper or lower case. The memory may be omitted if the GPU has one size."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> str:
        alike = [name for name in GPUS if value.lower() in (name, name.partition("-")[0])]
        if len(alike) > 1:
            self.fail(f"{value!r} is one of {' and '.join(alike)}", parameter, context)
        return alike[0] if alike else str(super().convert(value, parameter, context))


# No cluster or machine has more, so a larger number is a typing error.
NODES = click.IntRange(1, 100_000)
GPUS_PER_NODE = click.IntRange(1, 1024)
NAMES = ("gpu", "gpus_per_node", "nodes")
OPTIONS = console.section(
    "Cluster",
    click.option("--gpu", type=GpuName(list(GPUS)), help="Select the GPU of the nodes."),
    click.option("--gpus-per-node", type=GPUS_PER_NODE, default=8, help="Set the number of GPUs per node."),
    click.option("--nodes", type=NODES, default=1, help="Set the number of nodes."),
)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """`ranks_per_node` ranks share the fast links of a node. `gpu` is None if its memory is unknown."""

    gpu: Gpu | None
    nodes: int
    ranks_per_node: int

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node


def planned_cluster(options: dict[str, Any]) -> Cluster | None:
    """Return the cluster that the values of `OPTIONS` describe, or None if they name no GPU."""
    gpu = options.get("gpu")
    return Cluster(GPUS[gpu], options["nodes"], options["gpus_per_node"]) if gpu else None


def local_cluster(device_type: str, world_size: int, nodes: int | None = None) -> Cluster:
    """Return the nodes of this run, assuming that all are equal. `device_type` is a resolved device.

    `nodes` is by default the number of nodes that the launcher has started.
    """
    if nodes is None:
        rank, node = rank_environment.find(), rank_environment.find_node()
        started_nodes = max(1, world_size // rank.local_world_size) if rank else node.nodes if node else 1
        # Spare nodes have no ranks.
        nodes = next(count for count in range(started_nodes, 0, -1) if world_size % count == 0)
    ranks_per_node = world_size // nodes
    if device_type == device.CPU:
        return Cluster(Gpu("cpu", device.host_memory() // ranks_per_node, None), nodes, ranks_per_node)
    memory_bytes = device.gpu_memory()
    gpu = None if memory_bytes is None else Gpu("GPU", memory_bytes, device.compute_capability())
    return Cluster(gpu, nodes, ranks_per_node)
