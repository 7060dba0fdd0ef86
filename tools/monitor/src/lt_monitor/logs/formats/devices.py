"""What GPUs and their drivers, Neuron devices and full memories leave in a log.

Xids are sorted by what NVIDIA's driver r590 and AWS advise to do: isolate the node, reboot it, reset the GPU, or only watch.
"""

import re

from lt_monitor.events.records import Record
from lt_monitor.logs.fields import decimal
from lt_monitor.logs.formats import fault
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
_OUT_OF_MEMORY = re.compile(
    rb"torch\.(?:cuda\.)?OutOfMemoryError|CUDA out of memory|HIP out of memory|NEURON_RT_RESOURCE|XLA:.{0,80}RESOURCE_EXHAUSTED"
)
_GPU = re.compile(rb"\bGPU (?P<gpu>\d{1,4})\b")
_SIZES = re.compile(rb"Tried to allocate (?P<size>[\d.]{1,12}) (?P<unit>[KMGT]iB)")
_HOST_MEMORY = re.compile(
    rb"oom_kill event|oom-kill event|OOMKilled|Out of memory: Killed process|Memory cgroup out of memory|OutOfMemory: Killed"
    rb"|DefaultCPUAllocator: can't allocate memory"
)
_STEP_ID = re.compile(rb"StepId=(?P<job>\d{1,12})")
_CUDA = re.compile(rb"CUDA error: (?P<error>[^\r\n]{1,200})|CUDNN_STATUS_[A-Z_]{3,60}|CUBLAS_STATUS_[A-Z_]{3,60}")
_NEURON = re.compile(rb"\bNRT_(?!SUCCESS)[A-Z_]{4,60}|\(FATAL-RT-[A-Z-]{3,60}\)|NEURONCORE_NOT_AVAILABLE")
_UNITS = {b"KiB": 2**10, b"MiB": 2**20, b"GiB": 2**30, b"TiB": 2**40}


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


def memory(line: Line) -> Record | None:
    text = line.text
    if _OUT_OF_MEMORY.search(text) is not None:
        gpu, size = _GPU.search(text), _SIZES.search(text)
        amount = decimal(size["size"]) if size else None
        wanted = round(amount * _UNITS[size["unit"]]) if size and amount is not None else None
        return fault(line, "out-of-memory", "root", "critical", gpu=gpu["gpu"].decode() if gpu else None, wanted_bytes=wanted)
    if _HOST_MEMORY.search(text) is not None:
        step = _STEP_ID.search(text)
        return fault(line, "host-out-of-memory", "root", "critical", job=step["job"].decode() if step else None)
    return None


def driver(line: Line) -> Record | None:
    """An error that a CUDA or Neuron call returned."""
    if _CUDA.search(line.text) is not None:
        return fault(line, "cuda-error", "root", "critical")
    return fault(line, "neuron-error", "root", "critical") if _NEURON.search(line.text) is not None else None


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
