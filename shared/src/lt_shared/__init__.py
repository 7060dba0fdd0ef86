"""The contracts between the lt tools: file formats, manifests, architectures, log lines, console behaviour."""

from typing import Any


def version_of(distribution: str) -> str:
    """The version of an installed distribution; 0+unknown for sources that are imported without being installed."""
    # 20 ms, more than all of --help.
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "0+unknown"


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version_of("lt-shared")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
