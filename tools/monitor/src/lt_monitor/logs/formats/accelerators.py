"""Errors of the runtimes of AMD GPUs, Ascend NPUs and TPUs; `devices` has NVIDIA's and Neuron's."""

import re

from lt_monitor.events.records import Record
from lt_monitor.logs.line_parsers import fault, is_warning, regex
from lt_monitor.logs.lines import Line

_ROCM: tuple[tuple[re.Pattern[bytes], str, str, str | None], ...] = (
    # A program that uses memory outside its allocations, or a faulty driver. As with Xid 31, one log cannot tell which.
    (
        regex(rb"Memory access fault by GPU node-\d|amdgpu: .{0,60}(?:no-retry )?page fault \(src_id"),
        "cuda-error",
        "unknown",
        "page-fault",
    ),
    (regex(rb"VM_L2_PROTECTION_FAULT_STATUS"), "cuda-error", "unknown", "page-fault"),
    (regex(rb"reason ?: ?GPU Hang|HSA_STATUS_ERROR_EXCEPTION.{0,80}GPU Hang"), "gpu-lost", "root", None),
    (
        regex(
            rb"amdgpu.{0,80}(?:ring \S{1,40} timeout|device lost from bus|GPU reset.{0,20} failed|HWS hang|failed to (?:suspend"
            rb"|remove) (?:the )?queue"
            rb"|qcm fence wait loop timeout|[Ff]ailed to initialize SMU|SMU: .{0,40}not right state)|amdgpu_job_timedout"
            rb"|amdgpu.{0,80}GPU reset begin"
        ),
        "gpu-lost",
        "root",
        None,
    ),
    (regex(rb"no ROCm-capable device is detected|No HIP GPUs are available|hipErrorNoDevice"), "gpu-lost", "root", None),
    (
        regex(
            rb"amdgpu.{0,100}(?:RAS poison|[Uu]ncorrectable (?:hardware )?error(?!s: 0)|uncorrectable hardware errors detected"
            rb"|fatal error event)"
            rb"|hipErrorECCNotCorrectable"
        ),
        "ecc",
        "root",
        None,
    ),
    (regex(rb"HSA_STATUS_ERROR_INVALID_(?:ISA|CODE_OBJECT)|hipErrorNoBinaryForGpu"), "configuration", "root", None),
    (regex(rb"HSA_STATUS_ERROR_OUT_OF_RESOURCES|hipErrorOutOfMemory"), "out-of-memory", "root", None),
    (regex(rb"HSA_STATUS_ERROR(?:_[A-Z_]{2,60})?\b|hipError(?!Success)[A-Z]\w{3,60}"), "cuda-error", "root", None),
)
_AMD_GPU = regex(rb"amdgpu (?P<gpu>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d)|by GPU (?P<node>node-\d{1,3})")

# CANN's codes by component: runtime EE, driver EL, HCCL EI, HCCP EJ, inner errors of operators EZ, AI CPU E3.
_ASCEND = regex(rb"(?:^|[\s(\[])(?P<code>E[A-Z\d]\d{4})(?:\)?: |\):)")
_CODES: dict[bytes, tuple[str, str]] = {
    b"EE1002": ("nccl-timeout", "unknown"),
    b"EI0002": ("nccl-timeout", "cascade"),
    b"EI0006": ("rendezvous", "unknown"),
    b"EI0015": ("rendezvous", "unknown"),
    b"EI0016": ("rendezvous", "unknown"),
    b"EI0019": ("rendezvous", "root"),
    b"EJ0001": ("rendezvous", "root"),
    b"EJ0003": ("rendezvous", "root"),
    b"EJ0002": ("network-device", "root"),
    b"EI0013": ("nccl-error", "unknown"),
    b"EI0009": ("nccl-error", "unknown"),
    b"EI0012": ("nccl-error", "unknown"),
    b"EI0005": ("collective-mismatch", "root"),
    b"EI0014": ("collective-mismatch", "root"),
    **dict.fromkeys(
        (b"EI0001", b"EI0003", b"EI0004", b"EI0008", b"EI0010", b"EE1001", b"EE1003", b"EL0003", b"EH0001"),
        ("configuration", "root"),
    ),
    **dict.fromkeys((b"EL0004", b"EI0007", b"EI0011", b"EE1004"), ("out-of-memory", "root")),
}
_CONFIGURES = (b"EC0", b"EB0", b"EZ1", b"EZ3")
_INNER = (
    b"EE9999",
    b"EZ9999",
    b"EL9999",
    b"EI9999",
    b"EJ9999",
    b"EH9999",
    b"E19999",
    b"E29999",
    b"E39999",
    b"E49999",
    b"EZ9903",
    b"EE8888",
)
_OPERATORS = (b"EZ1001", b"EZ3002", b"EZ3003", b"EC0010", b"EB0000")
ASCEND_KEYWORDS = tuple(word for code in (*_CODES, *_INNER, *_OPERATORS) for word in (code + b":", b"(" + code + b")"))
_ASCEND_SAYS = regex(
    rb"HCCL (?:function )?error|HCCL error in|ERR0\d{4} .{0,40}(?:call (?:acl|hccl) api failed|api failed)"
    rb"|error code is 507\d{3}|runtime result = 507\d{3}"
    rb"|ACL (?:stream synchronize|error).{0,60}error code:? ?\d{6}|NPU function error|AclrtSynchronize\w{1,40}"
    rb"|aicore exception|device heartbeat lost|[Ii]nner error is reported as above"
)
_HCCL = regex(rb"HCCL|hccl")
_UNAVAILABLE = regex(rb"507008|507010|507899|device heartbeat lost|107020|50705[34]")

# jaxlib's coordination service: another task has gone, was preempted, or did not come to a barrier.
_COORDINATION = regex(
    rb"[Tt]ask \S{1,100} heartbeat timeout|missing heartbeats|stopped sending heartbeats"
    rb"|JAX distributed service detected fatal errors"
    rb"|(?:Xla|Jax)RuntimeError: (?:UNAVAILABLE|ABORTED|DEADLINE_EXCEEDED|CANCELLED): "
    rb"|Polled an error from coordination service"
    rb"|[Cc]oordination (?:service|agent)[^\r\n]{0,400}?(?:UNAVAILABLE|ABORTED|DEADLINE_EXCEEDED|INTERNAL|CANCELLED)"
    rb"|(?:UNAVAILABLE|ABORTED|DEADLINE_EXCEEDED|INTERNAL|CANCELLED): [^\r\n]{0,300}?(?:heartbeat|[Cc]oordination service"
    rb"|[Bb]arrier (?:timed out|failed|has failed)|Barrier_id)"
    rb"|Shutdown barrier has failed|[Bb]arrier timed out|RegisterTask.{0,100}DEADLINE_EXCEEDED"
)
_COORDINATION_LINE = regex(rb" [EF] |^[EF]\d{4} |Error: |UNAVAILABLE|ABORTED|DEADLINE_EXCEEDED|Terminating|timed out")
_TPU = regex(
    rb"Accelerator device halted prematurely|Halt is unexpected, all pending programs will fail"
    rb"|TPU slice (?:has )?failed|[Tt]he TPU is already in use|TPU initialization failed"
    rb"|Failed to (?:initialize|open) (?:TPU|libtpu)|Unable to initialize backend 'tpu'|TPU.{0,40}health check failed"
)
# A device that failed, although the words around it tell of a task that has gone.
_TPU_FAILED = regex(rb"TPU slice (?:has )?failed|Accelerator device halted|Halt is unexpected")
_TPU_IN_USE = regex(rb"already in use|TPU initialization failed: open\(/dev/accel")


def rocm(line: Line) -> Record | None:
    text = line.text
    for pattern, name, cause, action in _ROCM:
        match = pattern.search(text)
        if match is None:
            continue
        if is_warning(line, match.start()):
            return None
        gpu = _AMD_GPU.search(text)
        named = gpu[gpu.lastgroup].decode() if gpu is not None and gpu.lastgroup else None
        return fault(line, name, cause, "critical", _begin(line, match), gpu=named, action=action)
    return None


def _begin(line: Line, match: re.Match[bytes]) -> int | None:
    """Return the begin of the message, which may follow a progress bar on the same line."""
    return match.start() if b"%|" in line.text[: match.start()] else None


def ascend(line: Line) -> Record | None:
    """Parse an error of CANN by its code; torch_npu's own line above it only says that a call has failed."""
    text = line.text
    if (match := _ASCEND.search(text)) is not None:
        code = match["code"]
        name, cause = _CODES.get(code, ("configuration", "root") if code.startswith(_CONFIGURES) else ("npu-error", "unknown"))
        return (
            None if is_warning(line, match.start()) else fault(line, name, cause, "critical", match.start(), code=code.decode())
        )
    match = _ASCEND_SAYS.search(text)
    if match is None or is_warning(line, match.start()):
        return None
    if _UNAVAILABLE.search(text) is not None:
        return fault(line, "gpu-lost", "root", "critical")
    return fault(line, "nccl-error" if _HCCL.search(text) else "npu-error", "cascade", "critical")


def coordination(line: Line) -> Record | None:
    """Parse a JAX task that lost its connection to the other tasks."""
    match = _COORDINATION.search(line.text)
    if match is not None and _TPU_FAILED.search(line.text) is not None:
        return None
    if match is None or _COORDINATION_LINE.search(line.text) is None or is_warning(line, match.start()):
        return None
    # This process ends itself, by SIGABRT, and says no other reason.
    cause = "unknown" if b"Terminating process because" in line.text else "cascade"
    return fault(line, "rendezvous", cause, "critical")


def tpu(line: Line) -> Record | None:
    match = _TPU.search(line.text)
    if match is None or is_warning(line, match.start()):
        return None
    if _TPU_IN_USE.search(line.text) is not None:
        return fault(line, "rendezvous", "root", "critical")
    return fault(line, "gpu-lost", "root", "critical")
