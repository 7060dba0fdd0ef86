"""Memory that ran out: of a GPU, of a host, and of /dev/shm.

A process that writes to a full /dev/shm is ended by SIGBUS, so a bus error counts as that. Python's own MemoryError, the kernel's
killer and a container's limit are all the host's memory.
"""

from lt_monitor.events.records import Record
from lt_monitor.logs.fields import decimal
from lt_monitor.logs.line_parsers import BRACKETS, fault, is_warning, regex
from lt_monitor.logs.lines import Line

_OUT_OF_MEMORY = regex(
    rb"torch\.(?:cuda\.)?OutOfMemoryError|(?:CUDA|HIP|XPU|NPU|MPS backend) out of memory"
    rb"|CUDA (?:driver )?error: out of memory"
    rb"|NEURON_RT_RESOURCE|XLA:.{0,80}RESOURCE_EXHAUSTED|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
    rb"|RESOURCE_EXHAUSTED: (?:XLA:|Out of memory|[Ff]ailed to allocate|Error allocating|Attempting to (?:allocate|reserve))"
    rb"|(?:Resource exhausted|RESOURCE_EXHAUSTED): (?:Out of memory|From /job:)|Out of memory error on GPU \d"
    rb"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|Cuda failure \d{0,3} ?'out of memory'"
    rb"|Out of GPU memory trying to allocate|OOM when allocating tensor|NRT_RESOURCE\b|Ran out of memory in memory space"
    rb"|\[METAL\] Command buffer execution failed: Insufficient Memory|kIOGPUCommandBufferCallbackErrorOutOfMemory"
)
_GPU = regex(rb"\bGPU (?P<gpu>\d{1,4})\b")
_SIZES = regex(rb"Tried to allocate (?P<size>[\d.]{1,12}) (?P<unit>[KMGT]iB)")
_HOST_MEMORY = regex(
    rb"oom_kill event|oom-kill event|oom-kill:constraint|OOMKilled|Out of memory: Kill(?:ed)? process|invoked oom-killer: "
    rb"|Memory cgroup out of memory"
    rb"|OutOfMemory: Killed|DefaultCPUAllocator: (?:can't allocate|not enough) memory|std::bad_alloc"
    rb"|Errno 12\] Cannot allocate memory|fork: Cannot allocate memory"
    rb"|due to memory pressure \(OOM\)|ray\.exceptions\.OutOfMemoryError|(?:was|the node) running low on memory"
    rb"|low on resource: memory"
    rb"|TERM_MEMLIMIT|(?:^|\]:? |\)\x20?)(?:numpy\._?core\._exceptions\._ArrayMemoryError|MemoryError)(?::|\s{0,200}$)"
    rb"|Exceeded job memory limit|exceeded memory limit|PBS: job killed: [pv]{0,2}mem \S{1,40} exceeded limit"
    rb"|Exception in thread \"main\" java\.lang\.OutOfMemoryError\b"
    # Services of systemd, Vertex AI and Kaggle.
    rb"|Failed with result 'oom-kill'|killed by the OOM killer|\bKilled /\S{1,400} due to memory (?:pressure|used)\b"
    # earlyoom and HTCondor.
    rb"|sending SIG(?:TERM|KILL) to process \d{1,12} [^\r\n]{0,120}(?:badness|oom_score) "
    rb"|Job has gone over (?:cgroup )?memory limit"
    rb"|ran out-of-memory and exited|tried to allocate more memory than is available"
)
# With what labels stand before it.
_MEMORY_ERROR = regex(BRACKETS + rb"\s{0,4}(?:numpy\._?core\._exceptions\._Array)?MemoryError(?::|\s{0,200}$)")
_STEP_ID = regex(rb"StepId=(?P<job>\d{1,12})")
_SHARED_MEMORY = regex(
    rb"insufficient shared memory|out of shared memory|unable to (?:write to file|open shared memory object"
    rb"|mmap \d{1,20} bytes"
    rb" from file|open file|resize file) </torch_|[Ee]rror while creating shared memory segment|failed to extend /dev/shm"
    rb"|posix_fallocate failed|unable to allocate shared memory|/dev/shm[^\r\n]{0,200}No space left on device"
    rb"|No space left on device[^\r\n]{0,40} '?/(?:dev/shm|torch_|psm_)"
)
_BUS_ERROR = regex(
    rb"(?P<loader>is killed by signal: )?Bus error\b|Signal 7 \(SIGBUS\)|SIGBUS|failed \(exitcode: -7\)|exitcode {1,4}: -7\b"
    rb"|return code = -7\b"
)
_UNITS = {b"KiB": 2**10, b"MiB": 2**20, b"GiB": 2**30, b"TiB": 2**40}
# Keywords of what ended a process for the memory that it used.
KILLERS = (
    (b"Kill process ", b"invoked oom-killer", b"due to memory used", b"over cgroup memory", b"gone over memory"),
    (b"sending SIGTERM to process", b"sending SIGKILL to process"),
)
_POSSIBLE = (b"potential root causes", b"To enable traceback")


def shared(line: Line) -> Record | None:
    """/dev/shm is full. A bare bus error may be a file that became shorter while it was mapped."""
    match = _SHARED_MEMORY.search(line.text)
    if match is not None:
        return None if is_warning(line, match.start()) else fault(line, "shared-memory", "root", "critical")
    match = _BUS_ERROR.search(line.text)
    if match is None or is_warning(line, match.start()) or line.text.startswith(b"srun: "):
        return None
    return fault(line, "shared-memory", "root" if match["loader"] else "unknown", "critical", signal=7)


def memory(line: Line) -> Record | None:
    text = line.text
    if any(words in text for words in _POSSIBLE):
        return None
    host = _MEMORY_ERROR.match(text, line.body) or _HOST_MEMORY.search(text)
    if host is not None and not is_warning(line, host.start()):
        step = _STEP_ID.search(text)
        return fault(line, "host-out-of-memory", "root", "critical", job=step["job"].decode() if step else None)
    device = _OUT_OF_MEMORY.search(text)
    if device is None or is_warning(line, device.start()):
        return None
    gpu, size = _GPU.search(text), _SIZES.search(text)
    amount = decimal(size["size"]) if size else None
    requested_bytes = round(amount * _UNITS[size["unit"]]) if size and amount is not None else None
    return fault(
        line, "out-of-memory", "root", "critical", gpu=gpu["gpu"].decode() if gpu else None, wanted_bytes=requested_bytes
    )
