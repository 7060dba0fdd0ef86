"""Errors of NVIDIA GPUs and NVSwitches, network cards, Neuron devices and their drivers; `xids` has the catalogue of Xids."""

from lt_monitor.events.records import Record
from lt_monitor.logs.formats import xids
from lt_monitor.logs.line_parsers import fault, is_warning, regex
from lt_monitor.logs.lines import Line

_XID = regex(rb"NVRM: Xid \((?P<gpu>[^)]{1,80})\)[^:\r\n]{0,80}: (?P<xid>\d{1,5})\b")
_SXID = regex(rb"SXid \((?P<gpu>[^)]{1,80})\): (?P<xid>\d{1,6}), (?P<weight>Non-fatal|Fatal)?")
# Fabric manager's own log, and what ends it at its start.
_FABRIC = regex(
    rb"detected NVSwitch (?P<weight>non-fatal"
    rb"|fatal) error (?P<xid>\d{1,6}) on fid \d{1,3} on NVSwitch pci bus id (?P<gpu>\S{1,40})"
    rb"|(?P<dead>detected number of NVSwitches don't match with any supported system topology|aborting fabric manager"
    rb"|failed to find the GPU handle \d{1,20} in the multicast team|nv(?:idia)?-fabricmanager\S{0,20}: Failed with result"
    rb"|[Ff]abric [Mm]anager (?:is not running|failed to (?:start|initialize))|failed to initialize all the available NVSwitches)"
)
_KERNEL = regex(rb"(?P<node>\S{1,255}) kernel: ")
_LOST = regex(
    rb"fallen off the bus|RmInitAdapter failed|rm_init_adapter failed"
    rb"|GPU is lost|GPU_IS_LOST|GPU lost from the bus|Unable to determine the device handle"
    rb"|uncorrectable NVLink error|no CUDA-capable device is detected|system not yet initialized"
    rb"|CUDA-capable device\(s\) is/are busy or unavailable|CUDA (?:driver )?error: unknown error|CUDA unknown error"
    rb"|cuInit failed: unknown error"
    rb"|No CUDA GPUs are available|No visible GPU devices"
    rb"|CUDA driver initialization failed|no supported devices found for platform CUDA"
    rb"|CUDA_ERROR_(?:SYSTEM_NOT_READY|UNKNOWN|DEVICE_UNAVAILABLE|NO_DEVICE|OPERATING_SYSTEM|NVLINK_UNCORRECTABLE|LAUNCH_TIMEOUT)"
    rb"|cudaError(?:SystemNotReady|Unknown|DevicesUnavailable|NoDevice|OperatingSystem|NvlinkUncorrectable|LaunchTimeout"
    rb"|Contained)"
    rb"|CUDA error: the launch timed out and was terminated|OS call failed or operation not supported on this OS"
    rb"|[Ii]nvalid access of peer GPU memory over nvlink|NVIDIA-SMI has failed because it couldn't communicate"
    rb"|Failed to initialize NVML: (?:Unknown Error|Driver|GPU|Insufficient Resources)"
)
_NETWORK_DEVICE = regex(
    rb"Got (?:fatal |non-fatal )?async (?:error )?event ?: (?:port error|local catastrophic error|device fatal|QP fatal|CQ error)"
    rb"|Port: \d{1,3} Link DOWN|Link is Down"
    rb"|mlx5_core .{1,80}(?:health compromised|handling bad device|[Ll]ink down|Fatal error \d{1,3} detected)"
    rb"|mlx5_\d{1,3} port \d{1,3} .{0,40}state changed to DOWN"
)
_HUNG_TASK = regex(rb"INFO: task .{1,80} blocked for more than (?P<seconds>\d{1,9}) seconds")
_ECC = regex(
    rb"uncorrectable ECC error|ECC_UNCORRECTABLE|cudaErrorECCUncorrectable|[Uu]ncorrectable ECC"
    rb"|HIP error: [^\r\n]{0,40}\bECC\b|double[- ]bit ECC"
)
_CUDA = regex(
    rb"CUDA (?:driver |runtime )?[Ee]rror: (?P<error>[^\r\n]{1,200})|cuda runtime error \(\d{1,5}\)|CUDNN_STATUS_[A-Z_]{3,60}"
    rb"|CUBLAS_STATUS_[A-Z_]{3,60}"
    rb"|CUDA_ERROR_[A-Z_]{3,60}|no kernel image is available|cudaError[A-Z]\w{3,60}|driver version is insufficient"
    rb"|Cuda failure (?:\d{1,4} )?'(?!out of memory)|\.cu:\d{1,6}: .{1,200}Assertion `.{1,300}` failed"
    rb"|HIP error: (?P<hip>[^\r\n]{1,200})"
    # The runtime's own words, whatever library says them.
    rb"|an illegal (?:instruction|memory access) was encountered|unspecified launch failure|misaligned address"
    rb"|hardware stack error|device-side assert triggered|invalid program counter"
)
# A CUDA call with an error number of cuda.h. _DEAD_NUMBERS mean a missing GPU, driver or fabric, _UNFIT_NUMBERS a wrong program.
_NUMBERED = regex(
    rb"(?:\bcuInit|\bcuda[A-Z]\w{2,40})(?:\(\d?\))?(?:[ :,]{1,2}(?:call|has|returned|returns|failed|with|error|code"
    rb"|status)){0,4}[ =:(]{1,3}"
    rb"(?P<call>\d{1,3})\b"
    rb"|\b(?:CUDA|Cuda|cuda)(?: driver| runtime| initialization)? (?:[Ee]rror"
    rb"|[Ff]ailure|failed)(?: code)?[ =:(]{1,3}(?P<error>\d{1,3})\b(?! ?'out of memory)"
    rb"|\bcode=(?P<code>\d{1,3})\(cuda|\bError (?P<torch>\d{3}): (?=[a-zA-Z])"
)
_DEAD_NUMBERS = frozenset({46, 100, 220, 304, 702, 721, 802, 999})
_UNFIT_NUMBERS = frozenset({34, 35, 98, 101, 200, 209, 218, 222, 223, 300, 803, 804})
_ECC_NUMBER, _MEMORY_NUMBER = 214, 2
# "CUDA runtime error: an illegal instruction was encountered (73) in magmablas_strsm".
_LIBRARY = regex(rb"CUDA runtime error: (?P<text>[^\r\n]{1,120}?) \(\d{1,3}\) in ")
# Built for another GPU or driver, or more ranks than GPUs.
_UNFIT = regex(
    rb"no kernel image is available|NO_BINARY_FOR_GPU|insufficient|InsufficientDriver|invalid device ordinal|INVALID_DEVICE\b"
    rb"|provided PTX was compiled|UNSUPPORTED_PTX|forward compatibility was attempted|SYSTEM_DRIVER_MISMATCH"
    rb"|driver is too old"
)
_NEURON = regex(
    rb"\bNRT_(?!SUCCESS|RESOURCE\b)[A-Z_]{4,60}|\(FATAL-RT-[A-Z-]{3,60}\)|NEURONCORE_NOT_AVAILABLE|Nrt::Load failed"
    rb"|nrt_\w{3,40}:? (?:status|error)[ =:]{1,2}[1-9]|ENC:\w{1,60} {1,80}failed|failed neuronNetRegMr"
)
# The runtime's own lines of the level ERROR, behind a time and a thread. They may follow another error.
_NEURON_LINE = regex(rb"\bERROR {1,8}(?:NRT|NRTD|NMGR|TDRV|ENC|NEURON|KMGR|DLR):(?!nrt_infodump)\w{2,60} {1,80}(?P<text>\S)")
_NEURON_HARDWARE = regex(rb"NRT_EXEC_HW_ERR_(?!COLLECTIVES)|NRT_EXEC_HW_ERR\b(?!_)|NRT_HW_ERROR|NRT_EXEC_UNIT_UNRECOVERABLE")
_NEURON_UNFIT = regex(rb"NRT_UNSUPPORTED_NEFF_VERSION|Unable to determine Neuron Driver version")
# The level ERROR stands in columns of one width, which depends on the runtime's version.
_NEURON_PARTS = (b"NRT:", b"NMGR:", b"TDRV:", b"ENC:", b"NRTD:")
NEURON_KEYWORDS = (
    *(b"NRT_" + code for code in (b"EXEC", b"FAILURE", b"TIMEOUT", b"HW_ERROR", b"UNINIT", b"LOAD", b"INVALID", b"UNSUPPORTED")),
    *(b"NRT_" + code for code in (b"FAIL_", b"CLOSED", b"QUEUE")),
    *(b"FATAL-RT-", b"NEURONCORE_NOT_AVAILABLE", b"Nrt::Load failed", b"nrt_load status", b"NetRegMr"),
    *(b"nrt_execute", b"nrt_infer", b"nrt_init:"),
    *(b"R" + b" " * spaces + part for spaces in (2, 3) for part in _NEURON_PARTS),
)


def xid(line: Line) -> Record | None:
    """A driver's Xid or an NVSwitch's SXid; the number stands after the parenthesis."""
    text = line.text
    kernel = _KERNEL.search(text)
    node = kernel["node"].decode(errors="replace") if kernel else None
    if (match := _XID.search(text)) is not None:
        number = int(match["xid"])
        action = xids.action(number, text)
        severity = "warning" if action in ("monitor", "restart") else "critical"
        cause = "unknown" if number in xids.OF_PROGRAMS else "root"
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


def fabric(line: Line) -> Record | None:
    """Parse an NVSwitch error of NVIDIA's fabric manager. Without NVSwitches a node's GPUs cannot work together, or at all."""
    match = _FABRIC.search(line.text)
    if match is None:
        return None
    if match["dead"]:
        return fault(line, "sxid", "root", "critical", match.start())
    cause, severity = ("root", "critical") if match["weight"] == b"fatal" else ("unknown", "warning")
    return fault(line, "sxid", cause, severity, match.start(), xid=int(match["xid"]), gpu=_text(match["gpu"]))


def numbered(line: Line) -> Record | None:
    """Parse a CUDA error that the line names by its number."""
    match = _NUMBERED.search(line.text)
    if match is None or is_warning(line, match.start()):
        return None
    number = int(match[match.lastgroup or 0])
    if number in _DEAD_NUMBERS:
        return fault(line, "gpu-lost", "root", "critical")
    if number in _UNFIT_NUMBERS:
        return fault(line, "configuration", "root", "critical")
    if number == _ECC_NUMBER:
        return fault(line, "ecc", "root", "critical")
    if number == _MEMORY_NUMBER:
        return fault(line, "out-of-memory", "root", "critical")
    # Before CUDA 10.1 the runtime had other numbers for the rest: what its text says goes first.
    is_told = _ECC.search(line.text) is not None or _CUDA.search(line.text) is not None
    return fault(line, "cuda-error", "root", "critical") if number and not is_told else None


def lost(line: Line) -> Record | None:
    """Parse a lost GPU or network, whichever program reports it, without an Xid number."""
    match = _LOST.search(line.text)
    if match is not None:
        return None if is_warning(line, match.start()) else fault(line, "gpu-lost", "root", "critical")
    match = _NETWORK_DEVICE.search(line.text)
    return None if match is None else fault(line, "network-device", "root", "critical")


def hung_task(line: Line) -> Record | None:
    """Parse the kernel's hung-task report: a process waits for a disk, a network filesystem or a driver that does not answer."""
    match = _HUNG_TASK.search(line.text)
    return None if match is None else fault(line, "hung-task", "unknown", "critical", seconds=int(match["seconds"]))


def driver(line: Line) -> Record | None:
    """Parse an error that a CUDA or Neuron call returned."""
    text = line.text
    if (match := _ECC.search(text)) is not None:
        return None if is_warning(line, match.start()) else fault(line, "ecc", "root", "critical")
    if (match := _CUDA.search(text) or _LIBRARY.search(text)) is not None:
        if is_warning(line, match.start()):
            return None
        return fault(line, "configuration" if _UNFIT.search(text) is not None else "cuda-error", "root", "critical")
    match = _NEURON.search(text) or _NEURON_LINE.search(text)
    if match is None or is_warning(line, match.start()):
        return None
    if _NEURON_UNFIT.search(text) is not None:
        return fault(line, "configuration", "root", "critical")
    cause = "unknown" if match.re is _NEURON_LINE else "root"
    return fault(line, "neuron-error", cause, "critical", action="reset" if _NEURON_HARDWARE.search(text) is not None else None)


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
