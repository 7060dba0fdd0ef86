"""The amax of a tensor, its largest absolute value, of which its fp8 scale is made: found by the kernel that writes the tensor,
or by reading it.

A kernel writes partial maxima: program i puts the amax of what it stores into slot i modulo `PARTS`. They are kept with the
tensor's storage, so that views and what autograd passes on have them too, and are freed with it. They are valid while torch has
counted no change since: a tensor changed in place, such as a gradient that others were added to, is read. Changes by collectives
and through `.data` are not counted; what these kernels write undergoes neither.

An absolute value is kept as the bits of a float32, whose order as integers is that of the values. A NaN's are larger than all.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# As many as programs that read: a few for each multiprocessor. A single slot would be written half a million times.
PARTS = tl.constexpr(1024)
BLOCK = 8192
KEPT = "amax_parts"

_wanted = False


def want(wanted: bool) -> None:
    """Let the kernels of this process compute the amax of what they write, or not, which is the default."""
    global _wanted
    _wanted = wanted


def noted_with(tensor: Tensor) -> Tensor | None:
    """The partial maxima, int32 zeros [PARTS], for the kernel that will write all of `tensor`; None when nothing casts to fp8."""
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
    """Add `values`, float32, which are about to be stored as `dtype`, to this program's partial maximum."""
    # Rounding is monotonic: the maximum, rounded, is the maximum of the rounded values.
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
