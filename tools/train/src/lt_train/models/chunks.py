"""Unwrap a model chunk from the wrappers for data parallelism and 16-bit precision."""

from megatron.core.transformer.module import Float16Module

from lt_train.models.decoder import Decoder
from lt_train.parallel.ddp import Chunk
from lt_train.parallel.fsdp import FullySharded


def unwrap(chunk: Chunk) -> Decoder:
    """Return the Decoder inside `chunk`."""
    inner: Decoder = chunk.module
    return inner.module if isinstance(inner, Float16Module) else inner


def checkpoint_module(chunk: Chunk) -> Decoder | FullySharded:
    """Return the module whose sharded state dict a checkpoint saves and loads."""
    return chunk if isinstance(chunk, FullySharded) else unwrap(chunk)
