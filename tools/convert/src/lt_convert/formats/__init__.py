"""The checkpoint formats, one module each, which recognises a checkpoint directory, opens it, and plans the files of a new one.

A format's module has
    recognise(names)                        whether a directory with these names in it holds such a checkpoint
    open_source(directory, files)           the checkpoint as a `Source`
    outputs(target)                         the files (`OutputFile`) to be written for a `Target`

Those in READ_ONLY have `open_source` alone: a directory of their files looks like one of another format.
"""

import importlib
from collections.abc import Sequence
from types import ModuleType

MODULES = {
    "hf": "lt_convert.formats.huggingface",
    "megatron-dist": "lt_convert.formats.megatron.torch_dist",
    "megatron-legacy": "lt_convert.formats.megatron.legacy",
    "torchtitan": "lt_convert.formats.torchtitan",
}
READ_ONLY = {"megatron-fsdp": "lt_convert.formats.megatron.fsdp"}


def module(name: str) -> ModuleType:
    return importlib.import_module((MODULES | READ_ONLY)[name])


def recognise(names: Sequence[str]) -> str | None:
    """The format of a directory with these names (of files and directories) in it, None for none."""
    return next((name for name in MODULES if module(name).recognise(names)), None)
