"""Check EFA and NCCL: devices are present and used, interfaces exist, and variables still have an effect."""

import socket
from collections.abc import Iterator

from lt_train.preflight.check_interface import Finding, NotChecked, Situation, error, warning
from lt_train.process import device

DEPRECATED = {
    "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG": "TORCH_NCCL_DESYNC_DEBUG",
    "NCCL_ENABLE_TIMING": "TORCH_NCCL_ENABLE_TIMING",
    "PYTORCH_CUDA_ALLOC_CONF": "PYTORCH_ALLOC_CONF",
}
# torch 2.8 and newer always avoid recording streams, and warn about these variables.
WITHOUT_EFFECT = ("NCCL_AVOID_RECORD_STREAMS", "TORCH_NCCL_AVOID_RECORD_STREAMS")
PLUGIN_DIRECTORIES = ("/opt/amazon/ofi-nccl", "/opt/aws-ofi-nccl", "/opt/amazon/efa")


def deprecated_variables(situation: Situation) -> Iterator[Finding]:
    """Report variables whose names newer versions of torch warn of or ignore."""
    for old, new in DEPRECATED.items():
        if old in situation.environment:
            yield warning("the name is deprecated", old, f"set {new} instead")
    for name in WITHOUT_EFFECT:
        if name in situation.environment:
            yield warning("torch does so in any case", name, "unset it")


def interfaces(situation: Situation) -> Iterator[Finding]:
    """Check that the interfaces that NCCL and gloo are set to use exist.

    NCCL takes prefixes of names. A value that begins with `=` has whole names, with `^` the names to exclude.
    """
    situation.need_here()
    present = [name for _, name in socket.if_nameindex()]
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = situation.environment.get(variable)
        if not value:
            continue
        excludes, words = value.startswith("^"), value.lstrip("^=").split(",")
        exact = "=" in value[:2] or variable.startswith("GLOO")
        matching = [name for name in present if any(name == word if exact else name.startswith(word) for word in words)]
        used = [name for name in present if name not in matching] if excludes else matching
        if not used:
            yield error(
                f"{value} leaves none of this machine's interfaces: {', '.join(present)}",
                variable,
                "unset it, or name one of them",
            )


def efa_devices(situation: Situation) -> Iterator[Finding]:
    """Check that the machine has the EFA devices of its instance type, and that libfabric sees them."""
    situation.need_here()
    instance = situation.instance
    if instance is None or not instance.efa:
        raise NotChecked("not an instance type that is known to have EFA")
    folder = situation.path("/sys/class/infiniband")
    count = len(list(folder.iterdir())) if folder.is_dir() else 0
    if count < instance.efa:
        yield error(
            f"{count} EFA device(s), {instance.name} has {instance.efa}",
            "/sys/class/infiniband",
            "attach EFA interfaces to the node, and ask for them in the job (vpc.amazonaws.com/efa)",
        )
    fi_info = situation.run("fi_info", "-p", "efa")
    if fi_info is None:
        raise NotChecked("fi_info is not installed")
    if fi_info.returncode or "provider: efa" not in fi_info.stdout:
        yield error("libfabric sees no EFA provider", "fi_info -p efa", "install the EFA driver and libfabric, in the image too")


def efa_used(situation: Situation) -> Iterator[Finding]:
    """Check that NCCL uses EFA and not TCP on an instance type with EFA."""
    situation.need_here()
    instance = situation.instance
    if instance is None or not instance.efa or situation.nodes == 1:
        raise NotChecked("no EFA, or one node")
    provider = situation.environment.get("FI_PROVIDER")
    if provider not in (None, "efa"):
        yield error(f"libfabric is configured to use {provider}, not EFA", "FI_PROVIDER", "set it to efa, or unset it")
    library = "libnccl-net"
    directories = [*PLUGIN_DIRECTORIES, *situation.environment.get("LD_LIBRARY_PATH", "").split(":")]
    has_plugin = any(next(situation.path(directory).glob(f"**/{library}*.so*"), None) for directory in directories if directory)
    if instance.gpu and not has_plugin:
        yield warning(
            f"no {library}*.so of aws-ofi-nccl: NCCL would use TCP",
            "LD_LIBRARY_PATH",
            "install aws-ofi-nccl in the image and add its directory",
        )


def gpus(situation: Situation) -> Iterator[Finding]:
    situation.need_here()
    instance = situation.instance
    if instance is None or instance.gpu is None:
        raise NotChecked("the number of GPUs to expect is not known")
    if device.gpu_count() < instance.accelerators:
        yield warning(
            f"{device.gpu_count()} GPUs visible, {instance.name} has {instance.accelerators}",
            "CUDA_VISIBLE_DEVICES",
            "ask the scheduler for all of them, or see nvidia-smi for one that fell off the bus",
        )
