"""lt-convert: convert checkpoints between Hugging Face, Megatron (torch_dist and legacy) and TorchTitan."""

from typing import Any

from lt_shared import version_of


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version_of("lt-convert")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
