"""Find the optional packages with the fastest kernels, without importing them.

A login node plans for GPUs that it does not have, so nothing is imported here. When training starts,
`lt_train.train.kernel_trials` tests whether each package works.
"""

import dataclasses
import functools
import importlib.util
import sys
from pathlib import Path

from lt_shared import installed_versions


@dataclasses.dataclass(frozen=True)
class Package:
    """`modules` must all be importable. Messages use `name`, pip uses `distribution`."""

    name: str
    distribution: str
    modules: tuple[str, ...]

    def missing(self) -> str | None:
        """Return the first module of the package that is not installed, or None."""
        return next((module for module in self.modules if not is_installed(module)), None)

    def __str__(self) -> str:
        """Return the distribution with its version, for messages."""
        return " ".join((self.distribution, *installed_versions([self.distribution]).values()))


FLASH_ATTENTION = Package("flash-attn-4", "flash-attn-4", ("flash_attn.cute", "cutlass"))
QUACK = Package("quack", "quack-kernels", ("quack", "cutlass"))
# fla imports transformers if flash-linear-attention, which has its models, is installed, too.
FLASH_LINEAR_ATTENTION = Package("flash-linear-attention", "fla-core", ("fla", "einops"))
# A part of torch that works if the GPUs can read each other's memory.
SYMMETRIC_MEMORY = Package("symmetric memory", "symmetric memory", ("torch",))
# The log's header has these versions: the packages with kernels for a run.
DISTRIBUTIONS = (
    *("torch", "megatron-core", "triton", "flash-attn-4", "quack-kernels", "nvidia-cutlass-dsl", "fla-core"),
    "transformer-engine",
)


def miscompiles_gated_delta(capability: tuple[int, int] | None) -> bool:
    """Return whether Triton here computes the gradient of flash-linear-attention's gated delta wrongly.

    On Hopper GPUs, Triton 3.4 to 3.7.0 does. The package raises an error there, unless tilelang computes that kernel.
    """
    version = versions().get("triton", "")
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:3] if part.isdecimal())
    is_hopper = capability is not None and capability[0] == 9
    return is_hopper and (3, 4) <= numbers < (3, 7, 1) and not is_installed("tilelang")


@functools.cache
def is_installed(module: str) -> bool:
    """Return whether `import` would find a module."""
    if module == "cutlass":
        _find_cutlass()
    return _is_found(module)


def _is_found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _find_cutlass() -> None:
    """Add the folder of nvidia-cutlass-dsl to sys.path, so that `import cutlass` works outside site-packages, too.

    The wheel names the folder in a .pth file. Python reads .pth files in site-packages, but not in a directory of PYTHONPATH,
    for example one that `pip install --target` filled.
    """
    spec = importlib.util.find_spec("nvidia_cutlass_dsl")
    if _is_found("cutlass") or spec is None:
        return
    for place in spec.submodule_search_locations or ():
        folder = Path(place) / "dsl_packages"
        if (folder / "cutlass").is_dir():
            sys.path.append(str(folder))


def versions() -> dict[str, str]:
    """Return the versions of the installed distributions in `DISTRIBUTIONS`, by name."""
    return dict(_installed_versions())


@functools.cache
def _installed_versions() -> dict[str, str]:
    # Each rank asks twice, and reading the metadata of seven packages takes 10 ms.
    return installed_versions(DISTRIBUTIONS)
