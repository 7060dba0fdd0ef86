"""lt-train: pretrain decoder language models with megatron-core."""

from typing import Any

from lt_shared import version_of


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version_of("lt-train")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
