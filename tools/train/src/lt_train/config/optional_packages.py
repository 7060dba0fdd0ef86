"""The optional packages that the fastest kernels come from: which are installed, and where their modules are found.

Nothing is imported here: a login node plans for GPUs that it does not have. Training tries when it starts whether a package works
(`lt_train.train.kernel_trials`).
"""

import dataclasses
import functools
import importlib.util
import sys
from pathlib import Path

from lt_shared import installed_versions


@dataclasses.dataclass(frozen=True)
class Package:
    """`modules` are what has to be found for it; `name` is what messages call it, `distribution` what pip does."""

    name: str
    distribution: str
    modules: tuple[str, ...]

    def missing(self) -> str | None:
        """The first of its modules that is not installed."""
        return next((module for module in self.modules if not is_installed(module)), None)

    def __str__(self) -> str:
        """With its version, for messages."""
        return " ".join((self.distribution, *installed_versions([self.distribution]).values()))


FLASH_ATTENTION = Package("flash-attn-4", "flash-attn-4", ("flash_attn.cute", "cutlass"))
QUACK = Package("quack", "quack-kernels", ("quack", "cutlass"))
# A part of torch that works where GPUs may read each other's memory.
SYMMETRIC_MEMORY = Package("symmetric memory", "symmetric memory", ("torch",))
# Those of the log's header: what the kernels of a run may come from.
DISTRIBUTIONS = ("torch", "megatron-core", "triton", "flash-attn-4", "quack-kernels", "nvidia-cutlass-dsl", "transformer-engine")


@functools.cache
def is_installed(module: str) -> bool:
    """Whether a module would be found by `import`."""
    if module == "cutlass":
        _find_cutlass()
    return _is_found(module)


def _is_found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _find_cutlass() -> None:
    """Let `import cutlass` find nvidia-cutlass-dsl wherever that lies.

    Its wheel says where by a .pth file, which Python reads in site-packages, but not in a directory of PYTHONPATH, such as one
    that `pip install --target` has filled.
    """
    found = importlib.util.find_spec("nvidia_cutlass_dsl")
    if _is_found("cutlass") or found is None:
        return
    for place in found.submodule_search_locations or ():
        folder = Path(place) / "dsl_packages"
        if (folder / "cutlass").is_dir():
            sys.path.append(str(folder))


def versions() -> dict[str, str]:
    """Of the installed ones of `DISTRIBUTIONS`."""
    return installed_versions(DISTRIBUTIONS)
