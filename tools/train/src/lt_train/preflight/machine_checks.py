"""The machine: limits, shared memory, ports, clock, libraries."""

import ctypes
import importlib.util
import os
import resource
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from lt_train.config.cluster import GIB
from lt_train.config.optional_packages import is_installed
from lt_train.preflight.check_interface import Finding, NotChecked, Situation, error, warning
from lt_train.process import device, rank_environment

OPEN_FILES = 16384
SHARED_MEMORY_BYTES = 1 * GIB
PRIVILEGED = 1024
LARGE_PACKAGES = ("torch", "megatron.core", "flash_attn.cute", "quack")
# adjtimex(2): the flag STA_UNSYNC, the size of struct timex, and the offset of its field `status`.
UNSYNCHRONIZED = 0x0040
SIZE_OF_TIMEX = 208
STATUS_OFFSET = 40
LOOPBACK = {"127.0.0.1", "localhost"}


def open_files(situation: Situation) -> Iterator[Finding]:
    """Check the limit of open files: NCCL opens sockets to every rank, a checkpoint opens files, and libfabric its own."""
    situation.need_here()
    if situation.nodes == 1 and not _on_gpus(situation):
        raise NotChecked("one node without GPUs needs few")
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < OPEN_FILES:
        yield warning(
            f"{soft} open files at most", "ulimit -n", f"ulimit -n {OPEN_FILES}, or LimitNOFILE of slurmd or the kubelet"
        )


def shared_memory(situation: Situation) -> Iterator[Finding]:
    """Check the size of /dev/shm, through which NCCL passes data between a node's GPUs; containers get 64 MiB by default."""
    situation.need_here()
    if not _on_gpus(situation):
        raise NotChecked("no GPUs, so no NCCL")
    folder = situation.path("/dev/shm")
    if not folder.is_dir():
        yield error("is not there", "/dev/shm", "mount a tmpfs: docker --shm-size, an emptyDir of medium Memory")
    elif (size := shutil.disk_usage(folder).total) < SHARED_MEMORY_BYTES:
        yield error(f"{size / 2**20:.0f} MiB", "/dev/shm", "docker --shm-size=8g, or an emptyDir of medium Memory in Kubernetes")


def bytecode(situation: Situation) -> Iterator[Finding]:
    """Check that Python caches bytecode. Otherwise every start compiles flash-attn-4, quack and cutlass-dsl, which takes 2 s."""
    situation.need_here()
    uncached = [module for module in LARGE_PACKAGES if _is_compiled_each_time(module)]
    if uncached:
        cause = "PYTHONDONTWRITEBYTECODE" if sys.dont_write_bytecode else "installed packages"
        what = f"every start compiles {', '.join(uncached)} anew, which takes a rank seconds"
        yield warning(what, cause, "once: python -m compileall -q DIRECTORY, where they are installed")


def _is_compiled_each_time(module: str) -> bool:
    """Whether Python finds no cached bytecode of a module, and cannot write any."""
    spec = importlib.util.find_spec(module) if is_installed(module) else None
    if spec is None or not spec.has_location or spec.cached is None or os.path.exists(spec.cached):
        return False
    directory = next(folder for folder in Path(spec.cached).parents if folder.is_dir())
    return sys.dont_write_bytecode or not os.access(directory, os.W_OK)


def _on_gpus(situation: Situation) -> bool:
    return "parallelism" in situation.draft.parts and situation.need("parallelism").device == device.CUDA


def rendezvous_port(situation: Situation) -> Iterator[Finding]:
    """Check that the first rank can listen on MASTER_PORT, and that the other ranks can resolve MASTER_ADDR."""
    situation.need_here()
    rank_env, node = rank_environment.find(situation.environment), rank_environment.find_node(situation.environment)
    launched = rank_env or node
    if launched is None:
        raise NotChecked("lt-train chooses a free port itself")
    endpoint = f"{launched.master_address}:{launched.master_port}"
    if launched.master_port < PRIVILEGED:
        yield error(f"port {launched.master_port} needs root", endpoint, "set MASTER_PORT above 1023")
        return
    try:
        address = socket.gethostbyname(launched.master_address)
    except OSError:
        yield error(
            f"{launched.master_address} has no address here", endpoint, "set MASTER_ADDR to a name or address that all nodes know"
        )
        return
    if rank_env.rank if rank_env else node and node.node_rank:
        return
    # If torchrun shares its store with the ranks, torchrun itself listens on the port.
    if situation.environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        raise NotChecked("torchrun holds the port")
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address if address in LOOPBACK else "", launched.master_port))
        except OSError as problem:
            yield error(f"port {launched.master_port} is taken: {problem.strerror}", endpoint, "set MASTER_PORT to a free one")


def clock(situation: Situation) -> Iterator[Finding]:
    """Check that NTP synchronizes the kernel's clock; `nodes` compares the clocks of several nodes."""
    situation.need_here()
    state = ctypes.create_string_buffer(SIZE_OF_TIMEX)
    if ctypes.CDLL(None).adjtimex(state) < 0:
        raise NotChecked("the kernel does not say")
    status = ctypes.c_int.from_buffer(state, STATUS_OFFSET).value
    if status & UNSYNCHRONIZED and situation.nodes > 1:
        yield warning("the clock is not synchronized", "adjtimex", "start chronyd or systemd-timesyncd on the nodes")


def preloaded_libraries(situation: Situation) -> Iterator[Finding]:
    situation.need_here()
    for path in situation.environment.get("LD_PRELOAD", "").replace(":", " ").split():
        if "/" in path and not Path(path).exists():
            yield warning(
                "is not there: the loader ignores it, with a message from every process", f"LD_PRELOAD={path}", "unset it"
            )
