"""What GPUs, network cards, Neuron devices and their drivers leave in a log.

Xids are sorted by what NVIDIA's driver r590 and AWS advise to do: isolate the node, reboot it, reset the GPU, or only watch.
"""

import re

from lt_monitor.events.records import Record
from lt_monitor.logs.formats import fault, is_warning
from lt_monitor.logs.lines import Line

ACTIONS = {
    "isolate": frozenset({54}),
    "reboot": frozenset({79, 151, 168}),
    "reset": frozenset({48, 64, 74, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158}),
}
# Xids that a faulty program causes as well as a faulty GPU.
_OF_PROGRAMS = frozenset({13, 31, 43, 94})
_XID = re.compile(rb"NVRM: Xid \((?P<gpu>[^)]{1,80})\): (?P<xid>\d{1,5})\b")
_SXID = re.compile(rb"SXid \((?P<gpu>[^)]{1,80})\): (?P<xid>\d{1,6}), (?P<weight>Non-fatal|Fatal)?")
_KERNEL = re.compile(rb"(?P<node>\S{1,255}) kernel: ")
_RECOVERY = re.compile(rb"\((?P<action>[A-Za-z ]{1,40})\)\s*$")
_LOST = re.compile(
    rb"fallen off the bus|RmInitAdapter failed|rm_init_adapter failed"
    rb"|GPU is lost|GPU_IS_LOST|GPU lost from the bus|Unable to determine the device handle"
    rb"|uncorrectable NVLink error|no CUDA-capable device is detected|CUDA error: system not yet initialized"
    rb"|CUDA-capable device\(s\) is/are busy or unavailable|CUDA_ERROR_SYSTEM_NOT_READY"
    rb"|CUDA error: the launch timed out and was terminated"
)
_NETWORK_DEVICE = re.compile(
    rb"Got async event : (?:port error|local catastrophic error|device fatal)|Port: \d{1,3} Link DOWN|Link is Down"
    rb"|mlx5_core .{1,80}health compromised"
)
_HUNG_TASK = re.compile(rb"INFO: task .{1,80} blocked for more than (?P<seconds>\d{1,9}) seconds")
_ECC = re.compile(
    rb"uncorrectable ECC error|ECC_UNCORRECTABLE|cudaErrorECCUncorrectable|[Uu]ncorrectable ECC"
    rb"|double[- ]bit ECC"
)
_CUDA = re.compile(
    rb"CUDA (?:driver )?[Ee]rror: (?P<error>[^\r\n]{1,200})|cuda runtime error \(\d{1,5}\)|CUDNN_STATUS_[A-Z_]{3,60}"
    rb"|CUBLAS_STATUS_[A-Z_]{3,60}"
    rb"|CUDA_ERROR_[A-Z_]{3,60}|no kernel image is available|cudaError[A-Z]\w{3,60}|driver version is insufficient"
    rb"|Cuda failure (?:\d{1,4} )?'(?!out of memory)|\.cu:\d{1,6}: .{1,200}Assertion `.{1,300}` failed"
    rb"|HIP error: (?P<hip>[^\r\n]{1,200})"
)
# Built for another GPU or driver, or more ranks than GPUs.
_UNFIT = re.compile(
    rb"no kernel image is available|NO_BINARY_FOR_GPU|insufficient|InsufficientDriver|invalid device ordinal|INVALID_DEVICE\b"
    rb"|provided PTX was compiled|UNSUPPORTED_PTX|forward compatibility was attempted|SYSTEM_DRIVER_MISMATCH"
    rb"|driver is too old"
)
_NEURON = re.compile(
    rb"\bNRT_(?!SUCCESS|RESOURCE\b)[A-Z_]{4,60}|\(FATAL-RT-[A-Z-]{3,60}\)|NEURONCORE_NOT_AVAILABLE|Nrt::Load failed"
    rb"|nrt_load status=[1-9]|ENC:\w{1,60} {1,80}failed|failed neuronNetRegMr"
)
_NEURON_HARDWARE = re.compile(rb"NRT_EXEC_HW_ERR_(?!COLLECTIVES)|NRT_EXEC_HW_ERR\b(?!_)|NRT_HW_ERROR")


def xid(line: Line) -> Record | None:
    """A driver's Xid or an NVSwitch's SXid; the number stands after the parenthesis."""
    text = line.text
    kernel = _KERNEL.search(text)
    node = kernel["node"].decode(errors="replace") if kernel else None
    if (match := _XID.search(text)) is not None:
        number = int(match["xid"])
        action = _recovery(text) if number == 154 else None
        action = action or next((name for name, numbers in ACTIONS.items() if number in numbers), "monitor")
        severity = "warning" if action == "monitor" else "critical"
        cause = "unknown" if number in _OF_PROGRAMS else "root"
        return fault(line, "xid", cause, severity, xid=number, action=action, gpu=_text(match["gpu"]), node=node)
    if (match := _SXID.search(text)) is not None:
        is_fatal = match["weight"] == b"Fatal"
        return fault(
            line,
            "sxid",
            "root" if is_fatal else "unknown",
            "critical" if is_fatal else "warning",
            xid=int(match["xid"]),
            gpu=_text(match["gpu"]),
            node=node,
        )
    return None


def _recovery(text: bytes) -> str:
    """What Xid 154 says about itself."""
    match = _RECOVERY.search(text)
    words = match["action"].lower() if match else b""
    return "reboot" if b"reboot" in words else "reset" if b"reset" in words else "monitor"


def lost(line: Line) -> Record | None:
    """A GPU, or its network, that has gone, whatever reports it; without the number of an Xid."""
    match = _LOST.search(line.text)
    if match is not None:
        return None if is_warning(line, match.start()) else fault(line, "gpu-lost", "root", "critical")
    match = _NETWORK_DEVICE.search(line.text)
    return None if match is None else fault(line, "network-device", "root", "critical")


def hung_task(line: Line) -> Record | None:
    """The kernel's word for a process that waits for a disk, a network filesystem or a driver that does not answer."""
    match = _HUNG_TASK.search(line.text)
    return None if match is None else fault(line, "hung-task", "unknown", "critical", seconds=int(match["seconds"]))


def driver(line: Line) -> Record | None:
    """An error that a CUDA or Neuron call returned."""
    text = line.text
    if (match := _ECC.search(text)) is not None:
        return None if is_warning(line, match.start()) else fault(line, "ecc", "root", "critical")
    if (match := _CUDA.search(text)) is not None:
        if is_warning(line, match.start()):
            return None
        return fault(line, "configuration" if _UNFIT.search(text) is not None else "cuda-error", "root", "critical")
    match = _NEURON.search(text)
    if match is None or is_warning(line, match.start()):
        return None
    return fault(line, "neuron-error", "root", "critical", action="reset" if _NEURON_HARDWARE.search(text) is not None else None)


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
