"""The decoder inside the wrappers of data parallelism and 16 bits."""

from megatron.core.transformer.module import Float16Module

from lt_train.models.decoder import Decoder
from lt_train.parallel.ddp import Chunk
from lt_train.parallel.fsdp import FullySharded


def unwrapped(chunk: Chunk) -> Decoder:
    """The Decoder of `chunk`."""
    inner: Decoder = chunk.module
    return inner.module if isinstance(inner, Float16Module) else inner


def checkpointed(chunk: Chunk) -> Decoder | FullySharded:
    """The module that gives a checkpoint this rank's weights, and takes them from one."""
    return chunk if isinstance(chunk, FullySharded) else unwrapped(chunk)
