"""lt-convert: convert checkpoints between Hugging Face, Megatron (torch_dist and legacy) and TorchTitan."""

from lt_shared import lazy_exports

# Not typing's, whose import would come before lt_shared leaves Ctrl-C to the kernel.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from lt_convert.commands.python_api import convert as convert
    from lt_convert.commands.python_api import inspect as inspect
    from lt_convert.commands.python_api import merge as merge
    from lt_convert.commands.python_api import verify as verify
    from lt_shared.contracts.manifest import Checkpoint as Checkpoint

__version__: str
__all__ = ["Checkpoint", "__version__", "convert", "inspect", "merge", "verify"]
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        "lt-convert",
        dict.fromkeys(__all__, "lt_convert.commands.python_api") | {"Checkpoint": "lt_shared.contracts.manifest"},
    )
