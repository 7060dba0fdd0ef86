"""The contracts between the lt tools: file formats, manifests, architectures, log lines, console behaviour.

The names in `__all__`, here and in every tool's package, are the Python API; docs/api.md describes it. A name is imported on
first use, so importing a package costs nothing.
"""

import _signal  # type: ignore[import-not-found]
import os
import sys

# The name of a tool's program, or of its package during the first import of `python -m`.
_PROGRAM = ("lt-preprocess", "lt-train", "lt-convert", "lt-monitor", "-m")


# An idle thread of OpenBLAS polls for 2 ** 28 cycles before it sleeps, so that `import numpy` takes 0.1 s of processor time on
# two cores, a third of a short command. This makes it 2 ** 4 cycles. A matrix product of 3,000 rows takes as long with both.
_SLEEPING_THREADS = ("OPENBLAS_THREAD_TIMEOUT", "4")


def _prepare_program() -> None:
    """Let Ctrl-C end a tool's program while it imports its modules, without a traceback, and let NumPy's idle threads sleep.

    `console.run` takes interrupts over. `_signal`, because the module `signal` takes a millisecond to import. A notebook's and a
    test's handlers and variables stay as they are.
    """
    is_program = sys.argv[:1] and sys.argv[0].rpartition("/")[2] in _PROGRAM
    if not is_program:
        return
    if _signal.getsignal(_signal.SIGINT) == _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    os.environ.setdefault(*_SLEEPING_THREADS)


_prepare_program()

# After the call: their imports take a hundred times as long.
import contextlib  # noqa: E402
import importlib  # noqa: E402
from collections.abc import Callable, Iterable, Mapping  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

if TYPE_CHECKING:
    from lt_shared.console.errors import BadConfig as BadConfig
    from lt_shared.console.errors import BadData as BadData
    from lt_shared.console.errors import CannotCreate as CannotCreate
    from lt_shared.console.errors import IoFailure as IoFailure
    from lt_shared.console.errors import NoInput as NoInput
    from lt_shared.console.errors import ToolError as ToolError
    from lt_shared.console.errors import TryAgain as TryAgain
    from lt_shared.console.errors import Unavailable as Unavailable
    from lt_shared.console.errors import UsageError as UsageError
    from lt_shared.data import indexed_dataset as indexed_dataset


def installed_versions(distributions: Iterable[str]) -> dict[str, str]:
    """Return the versions of the installed `distributions`, in their order."""
    # 20 ms, more than all of --help.
    from importlib import metadata

    versions = {}
    for name in distributions:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def version_of(distribution: str) -> str:
    """The version of an installed distribution; 0+unknown for sources that are imported without being installed."""
    return installed_versions([distribution]).get(distribution, "0+unknown")


def lazy_exports(
    package: str, distribution: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package that imports its exports on first use (PEP 562).

    `modules` maps each exported name to the module that defines it. A path that ends with the name exports the module itself.
    """

    def get(name: str) -> Any:
        if name == "__version__":
            return version_of(distribution)
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(modules[name])
        value = module if modules[name].endswith(f".{name}") else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules, "__version__"})

    return get, names


__version__: str
__all__ = [
    "BadConfig",
    "BadData",
    "CannotCreate",
    "IoFailure",
    "NoInput",
    "ToolError",
    "TryAgain",
    "Unavailable",
    "UsageError",
    "__version__",
    "indexed_dataset",
]
if not TYPE_CHECKING:
    # Type checkers would take any name for one that is there.
    __getattr__, __dir__ = lazy_exports(
        __name__,
        "lt-shared",
        dict.fromkeys(__all__, "lt_shared.console.errors") | {"indexed_dataset": "lt_shared.data.indexed_dataset"},
    )
