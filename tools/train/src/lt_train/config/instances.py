"""AWS's instance types for training: accelerators, EFA devices, and the NCCL settings that they need.

The numbers are published by AWS. If the count of EFA devices is too low, no error appears: the job runs at a fraction of the
bandwidth. If it is too high, a pod stays pending for ever.
"""

import dataclasses
from collections.abc import Iterator

from lt_shared.console import UsageError

GPU = "nvidia.com/gpu"
NEURON = "aws.amazon.com/neuron"
EFA = "vpc.amazonaws.com/efa"


@dataclasses.dataclass(frozen=True)
class Instance:
    """`gpu` is a name in `lt_train.config.cluster`, None for Trainium. `resource` is Kubernetes' name for an accelerator.

    `device_rdma` says whether EFA reads and writes the memory of GPUs without the host.
    """

    name: str
    accelerators: int
    gpu: str | None
    efa: int
    device_rdma: bool = True

    @property
    def resource(self) -> str:
        return GPU if self.gpu else NEURON

    @property
    def described(self) -> str:
        return f"{self.name}: {self.accelerators} x {self.gpu or 'Trainium'}, {self.efa} EFA device(s)"

    def environment(self) -> dict[str, str]:
        """Return the NCCL and libfabric variables for every node. Variables that the user set take precedence."""
        variables = {"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "^docker,lo,veth"} if self.gpu else {}
        if self.efa:
            # Forked processes of libraries can run out of huge pages, so libfabric uses none.
            variables |= {"FI_PROVIDER": "efa", "FI_EFA_FORK_SAFE": "1", "FI_EFA_USE_HUGE_PAGE": "0"}
        if self.efa and self.device_rdma:
            variables["FI_EFA_USE_DEVICE_RDMA"] = "1"
            if self.gpu:
                variables["FI_EFA_SET_CUDA_SYNC_MEMOPS"] = "0"
        return variables


def _sizes(family: str, gpu: str, largest_efa: int = 1) -> Iterator[Instance]:
    """Yield the smaller sizes of a family. Sizes from 8xlarge on have EFA; 12xlarge and 24xlarge have four GPUs."""
    for size, gpus, efa in ((1, 1, 0), (2, 1, 0), (4, 1, 0), (8, 1, 1), (12, 4, 1), (16, 1, 1), (24, 4, largest_efa)):
        yield Instance(f"{family}.{size if size > 1 else ''}xlarge", gpus, gpu, efa, device_rdma=False)


INSTANCES = {
    instance.name: instance
    for instance in (
        Instance("p4d.24xlarge", 8, "a100-40gb", 4),
        Instance("p4de.24xlarge", 8, "a100-80gb", 4),
        Instance("p5.48xlarge", 8, "h100-80gb", 32),
        Instance("p5e.48xlarge", 8, "h200-141gb", 32),
        Instance("p5en.48xlarge", 8, "h200-141gb", 16),
        Instance("p6-b200.48xlarge", 8, "b200-180gb", 8),
        *_sizes("g5", "a10g-24gb"),
        Instance("g5.48xlarge", 8, "a10g-24gb", 1, device_rdma=False),
        *_sizes("g6", "l4-24gb"),
        Instance("g6.48xlarge", 8, "l4-24gb", 1, device_rdma=False),
        *_sizes("g6e", "l40s-48gb", largest_efa=2),
        Instance("g6e.48xlarge", 8, "l40s-48gb", 4, device_rdma=False),
        Instance("trn1.32xlarge", 16, None, 8),
        Instance("trn1n.32xlarge", 16, None, 16),
        Instance("trn2.48xlarge", 16, None, 16),
    )
}


def instance(name: str) -> Instance:
    """Return the instance type `name`, with or without SageMaker's "ml." prefix. Raises UsageError for an unknown type."""
    known_type = INSTANCES.get(name.removeprefix("ml."))
    if known_type is None:
        raise UsageError(f"no instance type {name!r} in the table", f"none, or a type: {', '.join(INSTANCES)}")
    return known_type
