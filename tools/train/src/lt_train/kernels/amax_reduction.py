"""The largest number of a tensor, which makes its scale in fp8: found by the kernel that writes the tensor, or by reading it.

A kernel notes it in parts: each program puts the largest of what it stores into the part that its number gives. The storage of
the tensor keeps the parts, so that views and what autograd passes on have them too, and they end with the numbers. They hold
while torch has counted no change since: a tensor changed in place, such as a gradient that others were added to, is read. Two
kinds of change are not counted, those by collectives and through `.data`; what these kernels write meets neither.

A size is kept as the bits of a float32, which have the order of the sizes. A NaN's are larger than all.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# As many as programs that read: a few for each of a GPU's processors. One alone would be written half a million times.
PARTS = tl.constexpr(1024)
BLOCK = 8192
KEPT = "largest_parts"

_wanted = False


def want(wanted: bool) -> None:
    """Say whether the kernels of this process shall note what is largest; they do not by themselves."""
    global _wanted
    _wanted = wanted


def noted_with(tensor: Tensor) -> Tensor | None:
    """For the kernel that will write all of `tensor`: where to note, int32 zeros [PARTS]; None when nothing casts to fp8."""
    if not _wanted:
        return None
    parts = _zeros(tensor.device)
    setattr(tensor.untyped_storage(), KEPT, (parts, _state(tensor)))
    return parts


def of(tensor: Tensor) -> Tensor:
    """The parts of `tensor`, contiguous: those noted with it if they still hold, else found now."""
    kept, state = getattr(tensor.untyped_storage(), KEPT, (None, None))
    return kept if kept is not None and state == _state(tensor) else find(tensor)


def find(tensor: Tensor) -> Tensor:
    parts = _zeros(tensor.device)
    programs = min(PARTS.value, triton.cdiv(tensor.numel(), BLOCK))
    _find[(programs,)](tensor, parts, tensor.numel(), BLOCK, num_warps=8)
    return parts


def _zeros(device: torch.device) -> Tensor:
    return torch.zeros(PARTS.value, dtype=torch.int32, device=device)


def _state(tensor: Tensor) -> tuple[int, int, torch.dtype]:
    """Differs once the numbers have changed, and for a view of some of them only."""
    return tensor._version, tensor.nbytes, tensor.dtype


@triton.jit
def note(values, dtype: tl.constexpr, parts):  # type: ignore[no-untyped-def]
    """Put the largest of `values`, float32, which are about to be stored as `dtype`, into this program's part."""
    # Rounding keeps the order: the largest, rounded, is the largest of the rounded.
    stored = sizes(tl.max(sizes(values)).to(tl.float32, bitcast=True).to(dtype).to(tl.float32))
    tl.atomic_max(parts + tl.program_id(0) % PARTS, stored, sem="relaxed")


@triton.jit
def sizes(values):  # type: ignore[no-untyped-def]
    """As they are kept; of float32."""
    return tl.abs(values).to(tl.int32, bitcast=True)


@triton.jit
def _find(tensor, parts, elements, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    program = tl.program_id(0).to(tl.int64)
    found = tl.zeros([BLOCK], dtype=tl.int32)
    for first in range(program * BLOCK, elements, tl.num_programs(0) * BLOCK):
        at = first + tl.arange(0, BLOCK)
        found = tl.maximum(found, sizes(tl.load(tensor + at, mask=at < elements, other=0.0).to(tl.float32)))
    tl.store(parts + program, tl.max(found))
