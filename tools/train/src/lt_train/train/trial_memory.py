"""Remember passed kernel trials in a cache file, so that the next start of the rank skips them.

The file is in the user's private cache directory (`lt_train.kernels.compile_caches`). Its name hashes everything that could make
a trial fail: the host, its GPU and driver, the packages and their paths, lt-train's kernels, the environment variables that
compilers read, the shapes of the model. `take` deletes the file and `confirm` writes it again after the first step. So if a start
dies in between, the next start tries the kernels again. Failed trials are never written.
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
from lt_train.process import device
from lt_train.train.trial_shapes import Shapes

ROOT = Path(__file__).parents[1]
VARIABLES = ("CUDA_", "CUTE_DSL_", "CUTLASS_", "FLASH_ATTENTION_", "FLA_", "QUACK_", "TRITON_", "TVM_FFI_", "LD_LIBRARY_PATH")
# The packages' compilers. `optional_packages` has the versions of the packages themselves.
COMPILERS = ("nvidia-cutlass-dsl-libs-base", "nvidia-cutlass-dsl-libs-cu13", "apache-tvm-ffi", "torch-c-dlpack-ext")
MODULES = ("flash_attn.cute", "quack", "cutlass", "fla")


class TrialMemory:
    """The cache file for a rank's trials. Without a `directory`, nothing is remembered."""

    def __init__(self, directory: str | None, facts: dict[str, Any]):
        self._text = json.dumps(facts, sort_keys=True, default=str)
        name = hashlib.sha256(self._text.encode()).hexdigest()
        self._path = Path(directory) / f"{name}.json" if directory else None

    def take(self) -> bool:
        """Return whether the trials have passed before, and delete the record until `confirm` writes it."""
        if self._path is None:
            return False
        try:
            content = self._path.read_text()
            self._path.unlink()
        except (OSError, ValueError):
            return False
        return content == self._text

    def confirm(self) -> None:
        """Remember that the trials and the first step after them have passed."""
        if self._path is not None:
            # Another rank may write the same file, and without the file the next start is only slower.
            with contextlib.suppress(OSError, ToolError), local_files.publish_file(str(self._path)) as file:
                file.write(self._text.encode())


NONE = TrialMemory(None, {})


def open_memory(shapes: Shapes, world_size: int, chosen: Kernels, rank_device: torch.device) -> TrialMemory:
    return TrialMemory(os.environ.get(TRIALS), facts(shapes, world_size, chosen, rank_device))


def facts(shapes: Shapes, world_size: int, chosen: Kernels, rank_device: torch.device) -> dict[str, Any]:
    """Return all facts that decide the result of a trial."""
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "device": device.identity(rank_device),
        "versions": optional_packages.versions() | installed_versions(COMPILERS),
        "places": {module: _place(module) for module in MODULES},
        "sources": _sources(),
        "variables": {name: value for name, value in os.environ.items() if name.startswith(VARIABLES)},
        "kernels": dataclasses.asdict(chosen),
        "shapes": dataclasses.asdict(shapes),
        "ranks": world_size,
    }


def _place(module: str) -> list[Any] | None:
    """Return the path that a module would be imported from, and its modification time."""
    try:
        origin = getattr(importlib.util.find_spec(module), "origin", None)
    except ModuleNotFoundError:
        return None
    return [origin, os.stat(origin).st_mtime_ns] if origin and os.path.isfile(origin) else None


def _sources() -> str:
    """Hash the sources of lt-train's kernels and of the modules that call the optional packages."""
    digest = hashlib.sha256()
    attention = ROOT / "models/mixers/flash_attention.py"
    for path in sorted([*(ROOT / "kernels").glob("*.py"), attention, ROOT / "train/kernel_trials.py"]):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
