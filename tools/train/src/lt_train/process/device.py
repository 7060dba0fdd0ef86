"""The devices that lt-train runs on. No other file names CUDA or its communication backend.

`auto` selects CUDA if there is a GPU, and the CPU otherwise. torch is imported inside functions, because the launcher counts GPUs
without it.
"""

import contextlib
import ctypes
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from lt_shared import memory
from lt_shared.console import Unavailable
from lt_train.process.rank_environment import RankEnvironment
from lt_train.process.start_clock import clock

if TYPE_CHECKING:
    import torch

CPU = "cpu"
CUDA = "cuda"
DEVICES = ("auto", CPU, CUDA)
BACKENDS = {CPU: "gloo", CUDA: "nccl"}
# NCCL's algorithms that sum in the same order every time. NVLS leaves the order to the switch.
DETERMINISTIC_COLLECTIVES = ("Ring", "Tree", "^NVLS")
# Attribute numbers of the driver's cuDeviceGetAttribute.
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76


def gpu_count() -> int:
    """Count the GPUs that this process may use, without importing torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([entry for entry in visible.split(",") if entry.strip() not in ("", "-1")])
    return sum(path.name[6:].isdigit() for path in Path("/dev").glob("nvidia[0-9]*"))


def compute_capability() -> tuple[int, int] | None:
    """Ask the driver for the compute capability of the first GPU that this process may use. None without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return None
    driver.cuDeviceGetAttribute(ctypes.byref(major), CAPABILITY_MAJOR, device)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), CAPABILITY_MINOR, device)
    return major.value, minor.value


def begin_driver() -> None:
    """Initialize the driver in a thread, so that the code before `compute_capability` does not wait for it."""

    def begin() -> None:
        with contextlib.suppress(OSError):
            ctypes.CDLL("libcuda.so.1").cuInit(0)

    if gpu_count():
        threading.Thread(target=begin, name="driver", daemon=True).start()


def capability_text(capability: tuple[int, int]) -> str:
    """Describe a compute capability, for messages about a GPU."""
    return f"its compute capability is {capability[0]}.{capability[1]}"


def capability_of(device: "torch.device") -> tuple[int, int] | None:
    """Ask torch for the compute capability of `device`. None on a CPU."""
    import torch

    return torch.cuda.get_device_capability(device) if device.type == CUDA else None


def gpu_memory() -> int | None:
    """Ask the driver for the bytes of memory of the first GPU that this process may use. None without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, total = ctypes.c_int(), ctypes.c_size_t()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return None
    return None if driver.cuDeviceTotalMem_v2(ctypes.byref(total), device) else total.value


def host_memory() -> int:
    """Return the bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def make_deterministic(device: str) -> None:
    """Let this rank compute the same numbers every time. Call before torch touches the GPU; a CPU is deterministic anyway."""
    if device != CUDA:
        return
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    os.environ.setdefault("NCCL_ALGO", "Ring")
    import torch

    torch.use_deterministic_algorithms(True)
    # With this flag, torch would write NaN to every new tensor, to find reads of uninitialized memory: slower, same results.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def resolve_device(choice: str) -> str:
    """Turn `auto` into a device. Raises Unavailable if CUDA is requested and there is no GPU."""
    if choice == "auto":
        return CUDA if gpu_count() else CPU
    if choice == CUDA and not gpu_count():
        raise Unavailable("no GPU is visible to this process", "use --device cpu, or check CUDA_VISIBLE_DEVICES")
    return choice


def default_ranks(device: str, model_parallel: int) -> int:
    """Return the number of ranks to start on this node: one per GPU, or on a CPU the number that the model needs."""
    return gpu_count() if device == CUDA else model_parallel


def launch_in_order() -> None:
    """Let a GPU start kernels in the order of their launch. Call this before the GPU is used.

    Tensor-parallel layers launch a collective and then the GEMM that hides it. If the GEMM started first, the collective would
    wait.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")


def allocate_in_expandable_segments() -> None:
    """Let torch grow its segments of GPU memory instead of leaving holes between them. Call this before torch allocates.

    Llama 3.1 8B on two H200 had 4.6 GiB of holes, and ran out of memory when it requested 2.0 GiB more.
    """
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")


def begin_context(device: str, rank_env: RankEnvironment) -> None:
    """Create this process's context on its GPU in a thread, during imports. torch uses the context that exists.

    Call this after all environment variables for the driver are set. Failures are ignored, because torch reports them better.
    """
    if device != CUDA:
        return

    def begin() -> None:
        gpu, context = ctypes.c_int(), ctypes.c_void_p()
        with clock.beside("context"), contextlib.suppress(OSError):
            driver = ctypes.CDLL("libcuda.so.1")
            if not driver.cuInit(0) and not driver.cuDeviceGet(ctypes.byref(gpu), rank_env.local_rank):
                driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), gpu)

    # torch sets this variable before it calls the driver, so it must be set here, too.
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
    threading.Thread(target=begin, name="context", daemon=True).start()


def prepare(device: str, rank_env: RankEnvironment) -> "torch.device":
    """Prepare and return the device of this rank. On the CPU, cores are divided among the ranks of this node."""
    import torch

    if device == CUDA:
        if not torch.cuda.is_available():
            raise Unavailable("torch cannot use a GPU here", "install a torch build with CUDA, or use --device cpu")
        torch.cuda.set_device(rank_env.local_rank)
        return torch.device(CUDA, rank_env.local_rank)
    from lt_train.megatron import cpu_backend

    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(max(1, cores // rank_env.local_world_size))
    cpu_backend.install(CUDA)
    return torch.device(CPU)


def outlive_aborted_collectives(device: str) -> None:
    """Let a process continue after `abort_collectives`. Call this before its first process group.

    Otherwise torch's NCCL watchdog ends the process if it sees an error first, and waits a minute for a dump of the collectives,
    which `process.watchdog` writes anyway.
    """
    if device == CUDA:
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        os.environ.setdefault("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0")
        os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")
        os.environ.setdefault("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "250")


def abort_collectives(device: str) -> None:
    """Abort this process's collectives, even if they wait for a dead rank, and wait for the end of their kernels.

    Call it from another thread than the one that waits for the collectives. All groups are aborted at once, because a group's
    kernel may be queued behind another group's, and each abort waits for its own kernels. Later reads and sends through these
    groups fail.
    """
    if device != CUDA:
        return
    import torch
    from torch.distributed import distributed_c10d

    backends = []
    for group in list(distributed_c10d._world.pg_names):
        # A gloo group has no backend for CUDA.
        with contextlib.suppress(RuntimeError):
            backends.append(group._get_backend(torch.device(CUDA)))
    threads = [threading.Thread(target=backend.abort, name="abort") for backend in backends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def use(device: "torch.device") -> None:
    """Let this thread work on `device`. Otherwise pinned memory in a new thread would create a context on the first GPU."""
    import torch

    if device.type == CUDA:
        torch.cuda.set_device(device)


def communicate_on_loopback(rank_env: RankEnvironment) -> None:
    """Let gloo and NCCL use the loopback interface when every rank is on this machine.

    The host name may not resolve, and no other machine can connect to loopback. NCCL uses the interface only to set up
    connections.
    """
    if rank_env.local_world_size == rank_env.world_size:
        names = [name for _, name in socket.if_nameindex()]
        if "lo" in names:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")


def synchronize(device: "torch.device") -> None:
    """Wait for the device, so that a wall clock read afterwards includes its work."""
    import torch

    if device.type == CUDA:
        torch.cuda.synchronize(device)


def name(device: "torch.device") -> str:
    """Return the vendor's name of the device, for example "NVIDIA H100 80GB HBM3"; "cpu" for a CPU."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == CUDA else CPU


def identity(device: "torch.device") -> dict[str, object]:
    """Identify the GPU and its driver, because the result of a kernel trial holds for them alone.

    The version of the driver is in the name of its library.
    """
    import torch

    if device.type != CUDA:
        return {"name": CPU}
    maps = Path("/proc/self/maps").read_text()
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": name(device),
        # The index does not identify a GPU: a task that may use a single GPU sees it as the first.
        "uuid": str(properties.uuid),
        "capability": capability_of(device),
        "memory_bytes": properties.total_memory,
        "toolkit": torch.version.cuda,
        "driver": sorted({line.split()[-1] for line in maps.splitlines() if "/libcuda.so" in line}),
        "module": _read_text(Path("/proc/driver/nvidia/version")),
    }


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def count_outside_allocator(owner: object, size_bytes: int) -> None:
    """Count GPU memory outside torch's allocator, such as symmetric memory, for as long as `owner` lives."""
    _outside_allocator.add(size_bytes)
    weakref.finalize(owner, _outside_allocator.add, -size_bytes)


class _OutsideAllocator:
    """Bytes outside torch's allocator: the current number and its peak."""

    def __init__(self) -> None:
        self.bytes = self.peak_bytes = 0

    def add(self, size_bytes: int) -> None:
        self.bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.bytes)


_outside_allocator = _OutsideAllocator()


def peak_memory(device: "torch.device") -> tuple[int, int | None]:
    """Return this process's peak memory in bytes: on a GPU allocated and reserved, on a CPU resident and None.

    On a GPU, the peak of symmetric memory, which torch's allocator leaves out, is added to both numbers. Buffers of symmetric
    memory live as long as the model, so the two peaks coincide and the sum is not too large.
    """
    import torch

    if device.type == CUDA:
        outside = _outside_allocator.peak_bytes
        return torch.cuda.max_memory_allocated(device) + outside, torch.cuda.max_memory_reserved(device) + outside
    return memory.peak_resident_bytes(), None


def record_memory_history() -> None:
    """Start to record where GPU memory is allocated and freed."""
    import torch

    torch.cuda.memory._record_memory_history()


def dump_memory_history(path: str) -> None:
    """Write the recorded allocations as a pickle for torch's memory viewer, and stop recording."""
    import torch

    torch.cuda.memory._dump_snapshot(path)  # type: ignore[no-untyped-call]
    torch.cuda.memory._record_memory_history(enabled=None)


def release(device: "torch.device") -> None:
    """Free cached GPU memory before a checkpoint is written."""
    import torch

    if device.type == CUDA:
        torch.cuda.empty_cache()


class HostCopies:
    """Copies to page-locked host memory on a separate stream, concurrent with the GPU's computation."""

    def __init__(self, device: "torch.device"):
        import torch

        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def lock(self, memory: "torch.Tensor") -> bool:
        import torch

        use(self.device)
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        return int(runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)) == 0

    def unlock(self, memory: "torch.Tensor") -> None:
        import torch

        torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        import torch

        self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def run(self, work: Callable[[], object], sources: "Iterable[torch.Tensor]") -> None:
        import torch

        with torch.cuda.stream(self.stream):
            work()
        # A tensor that exists only for the checkpoint is freed at once. Record its use, so that its memory is reused after the
        # copy.
        for source in sources:
            if source.device.type == CUDA:
                source.record_stream(self.stream)

    def end(self) -> None:
        self.copied.record(self.stream)

    def hold_back(self) -> None:
        import torch

        torch.cuda.current_stream(self.device).wait_event(self.copied)

    def wait(self) -> None:
        self.copied.synchronize()


def host_copies(device: "torch.device") -> HostCopies | None:
    """Return the copies to host memory, or None on a CPU, whose tensors are in host memory already."""
    return HostCopies(device) if device.type == CUDA else None
