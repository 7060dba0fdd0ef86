"""The table of remedies: how the user and a job script should react to each fault.

`action` says whether the job may start again: unchanged, on other nodes, or only after somebody has changed something. If another
process reports the cause of a fault, the fault has the action of an unknown cause.
"""

import dataclasses
import enum

from lt_monitor.events.records import FAULTS, Record


class Action(enum.StrEnum):
    NONE = "none"
    AGAIN = "again"
    WITHOUT_NODE = "without-node"
    STOP = "stop"
    UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True)
class Advice:
    """`text` is one line without a full stop."""

    text: str
    action: Action


ADVICE: dict[str, Advice] = {
    "out-of-memory": Advice("lower the micro batch or recompute activations, or shard over more GPUs", Action.STOP),
    "host-out-of-memory": Advice(
        "raise --mem or the pod's memory limit, or use fewer loader workers and less offloading", Action.STOP
    ),
    "shared-memory": Advice("raise --shm-size, or mount an emptyDir with medium Memory on /dev/shm", Action.STOP),
    "nccl-timeout": Advice("look at the suspect rank's stack with py-spy, and at its node", Action.UNKNOWN),
    "nccl-error": Advice("set NCCL_DEBUG=INFO and look for the first rank that failed", Action.UNKNOWN),
    "collective-mismatch": Advice("find where the two ranks take different paths: their collectives differ", Action.STOP),
    "rendezvous": Advice(
        "start it again; if it recurs, check that MASTER_ADDR and MASTER_PORT are reachable and free", Action.AGAIN
    ),
    "network": Advice("start it again; if it recurs, check the nodes' way to that server, or use a local copy", Action.AGAIN),
    "network-device": Advice("exclude the node and have its network card or cable checked", Action.WITHOUT_NODE),
    "cuda-error": Advice("run it with CUDA_LAUNCH_BLOCKING=1 to find the kernel that fails", Action.STOP),
    "ecc": Advice("exclude the node and have its GPU reset or replaced", Action.WITHOUT_NODE),
    "neuron-error": Advice(
        "look for the first line of the Neuron runtime that failed, with NEURON_RT_LOG_LEVEL=INFO", Action.UNKNOWN
    ),
    "xid": Advice("exclude the node and have its GPU reset or replaced", Action.WITHOUT_NODE),
    "sxid": Advice("exclude the node and have its NVSwitch checked", Action.WITHOUT_NODE),
    "nan": Advice("go back to an earlier checkpoint and lower the learning rate, use bf16, or skip the batch", Action.STOP),
    "loss-spike": Advice("watch the loss; if it stays high, go back to an earlier checkpoint and skip the batch", Action.STOP),
    "disk-full": Advice("free the disk or raise the quota, then resume from the last checkpoint", Action.STOP),
    "hung-task": Advice("check the filesystem that the process waits for (dmesg), then start it again", Action.AGAIN),
    "filesystem": Advice("start it again; if it recurs, check the mount of this path on its node (df, dmesg)", Action.AGAIN),
    "launch": Advice("exclude the node and have its Slurm daemon, clock and munge checked", Action.WITHOUT_NODE),
    "npu-error": Advice("look for the first error in the Ascend log (ascend/log, ASCEND_SLOG_PRINT_TO_STDOUT=1)", Action.UNKNOWN),
    "configuration": Advice("correct the command line, the configuration or the installation", Action.STOP),
    "killed": Advice("find out what ended the process: look for an OOM killer in dmesg on its node", Action.UNKNOWN),
    "exit": Advice("look at the output of the process that ended first: this log does not have its reason", Action.UNKNOWN),
    "traceback": Advice("fix the exception", Action.STOP),
    "preemption": Advice("start it again: the job was preempted", Action.AGAIN),
    "evicted": Advice("start it again; if it recurs, raise the pod's requests of memory and ephemeral storage", Action.AGAIN),
    "time-limit": Advice("start it again from the last checkpoint, or raise --time", Action.AGAIN),
    "node-failure": Advice("exclude the node and report it", Action.WITHOUT_NODE),
    "requeue": Advice("nothing: Slurm starts the job again", Action.AGAIN),
    "cancelled": Advice("nothing, if it was meant: somebody cancelled the job", Action.STOP),
    "hyperpod": Advice("nothing: HyperPod replaces the node and starts the step again", Action.AGAIN),
    "gpu-lost": Advice("exclude the node and have its GPU replaced", Action.WITHOUT_NODE),
    "unknown": Advice("read the last lines: this version does not know the failure", Action.UNKNOWN),
    "miscomputation": Advice(
        "exclude the node and test its processors; find the last right checkpoint with lt-train replay", Action.WITHOUT_NODE
    ),
}
_PAGE_FAULT = Advice(
    "run it with AMD_SERIALIZE_KERNEL=3 to find the kernel; if it recurs on this node alone, have its GPU checked", Action.UNKNOWN
)
_SYNAPSE = Advice("look for the first error in $HABANA_LOGS (LOG_LEVEL_ALL=3)", Action.UNKNOWN)
_CONTAINED = Advice("start it again: the driver has set the memory aside; reset the GPU when the node is idle", Action.AGAIN)
_BUSY_CONTROLLER = Advice(
    "start it again; if it recurs, ask whether Slurm's controller and its network are overloaded", Action.AGAIN
)
_TOO_MANY_PROCESSES = Advice(
    "start it again; if it recurs, raise the limit of processes (ulimit -u, pids.max), or use fewer loader workers", Action.AGAIN
)
_REFUSED_JOB = Advice("correct the program's path, or the options and the account of the job", Action.STOP)
_SILENT = Advice(
    "find out what ended the job without a word: sacct or kubectl describe, an OOM killer in dmesg, the uptime of its nodes",
    Action.UNKNOWN,
)
_LOCAL_DISK = Advice("exclude the node and have its disk checked", Action.WITHOUT_NODE)
# By fault and the record's `action`.
_BY_ACTION = {
    ("xid", "restart"): _CONTAINED,
    ("cuda-error", "page-fault"): _PAGE_FAULT,
    ("cuda-error", "synapse"): _SYNAPSE,
    ("launch", "again"): _BUSY_CONTROLLER,
    ("launch", "stop"): _REFUSED_JOB,
    ("launch", "processes"): _TOO_MANY_PROCESSES,
    ("filesystem", "isolate"): _LOCAL_DISK,
    ("unknown", "silent"): _SILENT,
}
# Filesystems of several directories, so that the second name is the mount's.
_MOUNT_ROOTS = frozenset({"mnt", "media", "home", "net", "nfs", "run"})
_LOST_GPU = frozenset({54, 79})
# Of programs as much as of GPUs.
_XID_OF_PROGRAM = Advice("fix the program if it recurs on other nodes, else have this node's GPU checked", Action.UNKNOWN)
_ELSEWHERE = Advice("look at the other ranks' logs: this process only says that another has gone", Action.UNKNOWN)
_CRASHED = Advice("look at the stack of the process that crashed (PYTHONFAULTHANDLER=1, core file)", Action.UNKNOWN)
_ASKED = Advice("start it again: the job was asked to end", Action.AGAIN)
_FABRIC = Advice("start it again; if it recurs, run nccl-tests on these nodes", Action.AGAIN)
_NEURON_DEVICE = Advice("exclude the node and have its Neuron device reset or replaced", Action.WITHOUT_NODE)
_OTHER = Advice("read the line: this version does not know the fault", Action.UNKNOWN)
assert set(ADVICE) == set(FAULTS)


def advice(fault: Record) -> Advice:
    """What to do about a fault."""
    name = fault["fault"]
    general = _BY_ACTION.get((name, str(fault.get("action")))) or ADVICE.get(name, _OTHER)
    if name == "xid":
        return _of_xid(fault, general)
    if name == "killed":
        return _of_signal(fault.get("signal"), general)
    if name == "filesystem" and isinstance(fault.get("path"), str):
        return Advice(general.text.replace("this path", _mount(fault["path"])), general.action)
    if name == "traceback" and fault["cause"] != "root":
        return _ELSEWHERE
    if name == "nccl-error" and fault.get("action") == "again":
        return _FABRIC
    if name == "nccl-error" and any(
        word in fault["message"] for word in ("ncclSystemError", "ncclRemoteError", "unhandled system", "network error")
    ):
        return _FABRIC
    if name == "neuron-error" and fault.get("action") == "reset":
        return _NEURON_DEVICE
    return general


def _of_xid(fault: Record, general: Advice) -> Advice:
    if general is _CONTAINED:
        return general
    if fault.get("xid") in _LOST_GPU:
        return ADVICE["gpu-lost"]
    return general if fault.get("cause") == "root" and fault.get("action") != "monitor" else _XID_OF_PROGRAM


def _of_signal(number: int | None, general: Advice) -> Advice:
    if number in (1, 2, 10, 12, 15):
        return _ASKED
    return _CRASHED if number in (4, 6, 8, 11) else general


def _mount(path: str) -> str:
    """The directory of `path` that most likely is the mount: its first name, or the first two below /mnt, /home and the like."""
    names = path.strip("/").split("/")
    return "/" + "/".join(names[: 2 if names[0] in _MOUNT_ROOTS and len(names) > 2 else 1])
