"""A copy in memory: a step, a description in JSON, and the tensors. Rank and launcher map the same memory.

    bytes  0 to 8     the step, little endian; 0 while the content is incomplete
    bytes  8 to 16    the length of the description
    from byte 16      {"numbers": {...}, "tensors": [[name, dtype, shape, offset], ...]}
    from each offset  the bytes of a tensor

The step is written last and cleared first, so a copy that a killed process has left incomplete never counts.
"""

import json
import mmap
import os
from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor

from lt_train.checkpoint.memory.header import COMPLETE_BYTES, HEADER_BYTES, read_step, write_step
from lt_train.checkpoint.shards.shared_memory import aligned, shared_memory

# More bytes than the description of the first step takes: numbers grow by a few digits, and losses wait for their log line.
SPARE_BYTES = 1 << 20
DTYPES = {
    str(dtype): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}


class Segment:
    """Memory of a copy that this process may write, or read."""

    def __init__(self, descriptor: int, memory: Tensor):
        self.descriptor, self.memory = descriptor, memory

    @classmethod
    def create(cls, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> Self:
        """Create memory for `tensors`, and for `numbers` that may grow by SPARE_BYTES."""
        description = len(json.dumps(_describe(numbers, tensors, 0)))
        content_bytes = sum(aligned(tensor.nbytes) for tensor in tensors.values())
        return cls(*shared_memory(aligned(HEADER_BYTES + 2 * description + SPARE_BYTES) + content_bytes))

    @classmethod
    def attach(cls, descriptor: int) -> Self:
        """Map memory that a second process made. The descriptor then belongs to the segment."""
        return cls(descriptor, torch.frombuffer(mmap.mmap(descriptor, 0), dtype=torch.uint8))

    @property
    def step(self) -> int:
        """The step of the copy, 0 if it is incomplete."""
        return read_step(self.descriptor)

    def close(self) -> None:
        self.memory = torch.empty(0, dtype=torch.uint8)
        os.close(self.descriptor)

    def begin(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> list[Tensor] | None:
        """Clear the step and write the description. Return the places of the `tensors`, None if they do not fit."""
        write_step(self.descriptor, 0)
        content_bytes = sum(aligned(tensor.nbytes) for tensor in tensors.values())
        offset = len(self.memory) - content_bytes
        description = json.dumps(_describe(numbers, tensors, offset)).encode()
        if HEADER_BYTES + len(description) > offset:
            return None
        os.pwrite(self.descriptor, len(description).to_bytes(HEADER_BYTES - COMPLETE_BYTES, "little"), COMPLETE_BYTES)
        self.memory[HEADER_BYTES : HEADER_BYTES + len(description)] = torch.frombuffer(bytearray(description), dtype=torch.uint8)
        return [place for _, place in _places(self.memory, tensors, offset)]

    def complete(self, step: int) -> None:
        write_step(self.descriptor, step)

    def read(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors, which are views of the memory, and the numbers. Raise ValueError if the content is malformed."""
        length = int.from_bytes(os.pread(self.descriptor, HEADER_BYTES - COMPLETE_BYTES, COMPLETE_BYTES), "little")
        description = json.loads(bytes(self.memory[HEADER_BYTES : HEADER_BYTES + length].numpy()))
        tensors = {}
        for name, dtype, shape, offset in description["tensors"]:
            if dtype not in DTYPES:
                raise ValueError(f"{name} has the unknown type {dtype}")
            tensor = torch.empty(shape, dtype=DTYPES[dtype], device="meta")
            part = self.memory[offset : offset + tensor.nbytes]
            if offset < 0 or len(part) != tensor.nbytes:
                raise ValueError(f"{name} is not inside the memory")
            tensors[name] = part.view(tensor.dtype).view(shape)
        return tensors, description["numbers"]


def _describe(numbers: dict[str, Any], tensors: dict[str, Tensor], first: int) -> dict[str, Any]:
    table, offset = [], first
    for name, tensor in tensors.items():
        table.append([name, str(tensor.dtype), list(tensor.shape), offset])
        offset += aligned(tensor.nbytes)
    return {"numbers": numbers, "tensors": table}


def _places(memory: Tensor, tensors: dict[str, Tensor], first: int) -> Iterator[tuple[str, Tensor]]:
    offset = first
    for name, tensor in tensors.items():
        yield name, memory[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        offset += aligned(tensor.nbytes)
