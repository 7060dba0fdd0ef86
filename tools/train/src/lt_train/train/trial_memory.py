"""Which trials of kernels have passed at an earlier start of a rank, so that this start need not wait for them.

A trial is remembered in a file of the user's private cache directory (`lt_train.kernels.compile_caches`), named by all that could
make it fail another time: the machine, its GPU and driver, the packages and where they lie, this program's kernels, the variables
that compilers read, the model's shapes. Whoever relies on the file deletes it, and writes it again after the first step: a start
that dies before, in whatever way, is followed by one that tries again. What has failed is never written.
"""

import contextlib
import dataclasses
import hashlib
import importlib.util
import json
import os
import platform
import socket
from pathlib import Path
from typing import Any

import torch

from lt_shared import installed_versions
from lt_shared.console import ToolError
from lt_shared.files import local_files
from lt_train.config import optional_packages
from lt_train.config.kernels import Kernels
from lt_train.kernels.compile_caches import TRIALS
from lt_train.runtime import device
from lt_train.train.trial_shapes import Shapes

ROOT = Path(__file__).parents[1]
VARIABLES = ("CUDA_", "CUTE_DSL_", "CUTLASS_", "FLASH_ATTENTION_", "QUACK_", "TRITON_", "TVM_FFI_", "LD_LIBRARY_PATH")
# Beside those of the log's header: what they compile with.
COMPILERS = ("nvidia-cutlass-dsl-libs-base", "nvidia-cutlass-dsl-libs-cu13", "apache-tvm-ffi", "torch-c-dlpack-ext")
MODULES = ("flash_attn.cute", "quack", "cutlass")


class TrialMemory:
    """Of one rank and all its trials together. Without a directory nothing is remembered."""

    def __init__(self, directory: str | None, facts: dict[str, Any]):
        self._text = json.dumps(facts, sort_keys=True, default=str)
        name = hashlib.sha256(self._text.encode()).hexdigest()
        self._path = Path(directory) / f"{name}.json" if directory else None

    def take(self) -> bool:
        """Whether they have passed; from here on they count as not tried, until `confirm`."""
        if self._path is None:
            return False
        try:
            content = self._path.read_text()
            self._path.unlink()
        except (OSError, ValueError):
            return False
        return content == self._text

    def confirm(self) -> None:
        """They have passed, and a step after them."""
        if self._path is not None:
            # Another rank may be writing the same; and it is only for speed.
            with contextlib.suppress(OSError, ToolError), local_files.publish_file(str(self._path)) as file:
                file.write(self._text.encode())


NONE = TrialMemory(None, {})


def of_rank(shapes: Shapes, world_size: int, chosen: Kernels, where: torch.device) -> TrialMemory:
    return TrialMemory(os.environ.get(TRIALS), facts(shapes, world_size, chosen, where))


def facts(shapes: Shapes, world_size: int, chosen: Kernels, where: torch.device) -> dict[str, Any]:
    """All that a trial depends on."""
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "device": device.identity(where),
        "versions": optional_packages.versions() | installed_versions(COMPILERS),
        "places": {module: _place(module) for module in MODULES},
        "sources": _sources(),
        "variables": {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)},
        "kernels": dataclasses.asdict(chosen),
        "shapes": dataclasses.asdict(shapes),
        "ranks": world_size,
    }


def _place(module: str) -> list[Any] | None:
    """Where a module would be imported from, and when it was installed."""
    try:
        origin = getattr(importlib.util.find_spec(module), "origin", None)
    except ModuleNotFoundError:
        return None
    return [origin, os.stat(origin).st_mtime_ns] if origin and os.path.isfile(origin) else None


def _sources() -> str:
    """A digest of this program's modules that call the packages, and of those beside them."""
    digest = hashlib.sha256()
    attention = ROOT / "models/mixers/flash_attention.py"
    for path in sorted([*(ROOT / "kernels").glob("*.py"), attention, ROOT / "train/kernel_trials.py"]):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
