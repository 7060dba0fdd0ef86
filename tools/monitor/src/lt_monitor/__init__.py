"""Read training logs of lt-train and Megatron: events as JSON lines, a summary of each run, a picture of the loss."""

from typing import Any

from lt_shared import version_of


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version_of("lt-monitor")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
