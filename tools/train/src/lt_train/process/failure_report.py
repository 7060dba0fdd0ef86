"""Report a failure once, by the rank that failed, for any number of ranks.

When a rank fails, every other rank fails soon after in a collective, with an error that does not tell the cause. So the first
rank to fail claims the report in the ranks' key-value store, and the other ranks end silently. A rank whose error may be such an
echo first waits a few seconds for the claim of the rank that failed. If rank 0 ends, the store ends, too: then rank 1 reports.
"""

import atexit
import os
import re
import socket
import sys
import time
import traceback
from collections.abc import Callable

import torch
from torch.distributed.distributed_c10d import _get_default_store

from lt_shared.console import ExitCode, ToolError
from lt_train.process import signals
from lt_train.process.interruption import Echo
from lt_train.process.rank_environment import RankEnvironment

CLAIMS = "lt-train/failures"
CODE = "lt-train/failure-code"
ECHO_SECONDS = 4.0
POLL_SECONDS = 0.1
# Packages that compile for the GPU at the first step, by module name, with the options to train without them.
OPTIONAL_PACKAGES = {
    "flash_attn": ("flash-attn-4", "--attention-backend fused"),
    "quack": ("quack-kernels", "--swiglu-impl triton --cross-entropy-impl triton"),
    "cutlass": ("nvidia-cutlass-dsl", "--attention-backend fused --swiglu-impl triton --cross-entropy-impl triton"),
}
_OUT_OF_MEMORY = "out of memory"
_COMMUNICATION = re.compile(r"gloo|nccl|connection (closed|reset)|timed out waiting", re.IGNORECASE)


class RankError(ToolError):
    """An error of the rank that `rank_env` describes."""

    def __init__(self, rank_env: RankEnvironment, message: str, hint: str | None, code: int):
        super().__init__(f"rank {rank_env.rank} on {socket.gethostname()}: {message}", hint)
        self.exit_code = code  # type: ignore[assignment]


def replacement_error(error: Exception, rank_env: RankEnvironment, less_memory: Callable[[], str]) -> BaseException:
    """Return the exception to raise in place of `error`: its report, or a silent SystemExit if another rank reports.

    `less_memory` names options that lower the run's memory.

    From here on a signal ends the process at once.
    """
    signals.die_by_signals()
    report = _report(error, rank_env, less_memory)
    if rank_env.world_size == 1 or not torch.distributed.is_initialized():
        return report
    try:
        claimed = _claim(int(report.exit_code), wait=is_echo(error))
    except (RuntimeError, OSError):
        return _without_store(rank_env, int(report.exit_code))
    atexit.register(_end_at_once, int(report.exit_code) if claimed is None else claimed)
    if claimed is not None:
        return SystemExit(claimed)
    if rank_env.rank == 0:
        # The other ranks must still be able to read the claim. lt-train and torchrun end this process earlier.
        atexit.register(time.sleep, ECHO_SECONDS + 1)
    return report


def _end_at_once(code: int) -> None:
    """Skip the interpreter's clean-up, because communication libraries may wait minutes there for the other ranks."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _claim(code: int, wait: bool) -> int | None:
    """Claim the report for this rank. Returns None if this rank is the first, else the exit code of the first rank."""
    store = _get_default_store()
    deadline = time.monotonic() + (ECHO_SECONDS if wait else 0.0)
    while time.monotonic() < deadline and not store.check([CODE]):
        time.sleep(POLL_SECONDS)
    if store.add(CLAIMS, 1) == 1:
        store.set(CODE, str(code))
        return None
    claimed = int(store.get(CODE))
    # A launcher ends all ranks when the first one ends. The first rank must have printed its report by then.
    time.sleep(ECHO_SECONDS / 4)
    return claimed


def _without_store(rank_env: RankEnvironment, code: int) -> BaseException:
    """Return the exception of a rank that has lost the store, because rank 0 has ended; lt-train and torchrun notice that."""
    if rank_env.rank != 1 or rank_env.launcher != "srun":
        return SystemExit(code)
    return RankError(
        rank_env, "the connection to rank 0 was lost", "see how rank 0 ended; dmesg shows whether memory ran out", code
    )


def is_echo(error: BaseException) -> bool:
    """Whether another rank's end may have caused `error`."""
    if isinstance(error, Echo | torch.distributed.DistError):
        return True
    return isinstance(error, RuntimeError) and bool(_COMMUNICATION.search(str(error)))


def _report(error: Exception, rank_env: RankEnvironment, less_memory: Callable[[], str]) -> RankError:
    if isinstance(error, ToolError):
        return RankError(rank_env, str(error), error.hint, error.exit_code)
    # torch appends a stack of C++ frames to the first line.
    lines = str(error).strip().split("\n")
    first_line = lines[0]
    # NCCL and CUDA raise errors that differ from torch's OutOfMemoryError: whichever allocates last fails.
    if of_memory := next((line for line in lines if _OUT_OF_MEMORY in line.lower()), None):
        return RankError(rank_env, of_memory, less_memory(), ExitCode.BAD_CONFIG)
    if missing_package := _optional_package(error):
        package, remedy = missing_package
        reason = f"{type(error).__name__}: {first_line}"
        return RankError(rank_env, f"{package}, an optional package, does not work here: {reason}", remedy, ExitCode.BAD_CONFIG)
    if isinstance(error, OSError):
        prefix = f"{error.filename}: " if error.filename else ""
        return RankError(rank_env, f"{prefix}{(error.strerror or str(error)).lower()}", None, ExitCode.IO)
    if is_echo(error):
        remedy = "see how the other ranks ended; where one was killed, dmesg shows whether memory ran out"
        return RankError(rank_env, f"communication with the other ranks failed: {first_line}", remedy, ExitCode.IO)
    return RankError(
        rank_env, f"internal error: {type(error).__name__}: {first_line}", "LT_DEBUG=1 shows where", ExitCode.INTERNAL
    )


def _optional_package(error: BaseException) -> tuple[str, str] | None:
    """Return the optional distribution that raised `error` in its code or at its import, and how to train without it."""
    modules = [error.name or ""] if isinstance(error, ImportError) else []
    modules += [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    for module in modules:
        for package, (distribution, options) in OPTIONAL_PACKAGES.items():
            if module == package or module.startswith(f"{package}."):
                return distribution, f"pip install --force-reinstall 'lt-train[flash]' may mend it; without it: {options}"
    return None
