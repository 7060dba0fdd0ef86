"""Measure the process's peak and available memory, keep freed memory, and pause Python's garbage collector."""

import contextlib
import gc
import resource
from collections.abc import Iterator
from pathlib import Path

# The numbers of mallopt's options in glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


def peak_resident_bytes() -> int:
    """Return the process's peak resident memory in bytes.

    ru_maxrss alone does not do: it starts at the parent's size, so a command started by a notebook of 2 GB starts at 2 GB.
    """
    try:
        with open("/proc/self/status", "rb") as file:
            return int(next(line for line in file if line.startswith(b"VmHWM:")).split()[1]) << 10
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def keep_freed_memory(size_bytes: int) -> None:
    """Let the allocator of C keep up to `size_bytes` (at most 32 MiB) of freed memory instead of giving it back to the kernel.

    A loop that allocates and frees a few megabytes each time gets them back from the kernel as new pages, which the kernel fills
    with zeros: a fifth of the processor time of lt-monitor's loop. Does nothing without glibc.
    """
    # Imported with NumPy, but not before.
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        set_option = ctypes.CDLL(None).mallopt
        # Setting one threshold freezes the other at 128 KiB, so both are set.
        for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            set_option(option, size_bytes)


def available_bytes(system: Path = Path("/")) -> int:
    """Return the bytes that this process could allocate without swapping, limited by the machine or the control group.

    A container and a job of Slurm have a control group (version 2) with a limit. Its page cache counts as free.
    """
    lines = (system / "proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    groups = (system / "proc/self/cgroup").read_text().splitlines()
    cgroup = next((line.removeprefix("0::/") for line in groups if line.startswith("0::/")), "")
    root = system / "sys/fs/cgroup"
    group = root / cgroup
    for directory in (group, *group.parents):
        with contextlib.suppress(OSError, ValueError):
            limit, used = (int((directory / f"memory.{name}").read_text()) for name in ("max", "current"))
            cached = next(
                int(line.split()[1]) for line in (directory / "memory.stat").read_text().splitlines() if line[:5] == "file "
            )
            available = min(available, max(0, limit - used + cached))
        if directory == root:
            break
    return available


@contextlib.contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Disable garbage collection in the block, which allocates many objects and frees none.

    The collector looks at all objects again and again while they become more: for a checkpoint's index of 63 MB for 9.9 s of
    11.2 s (2 cores, 2026-11-23), at a tokenizer's vocabulary for a quarter of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
