"""The amax of a tensor, its largest absolute value, from which its fp8 scale is computed: by the kernel that writes the tensor,
or by another kernel that reads it.

A kernel writes partial maxima: program i stores the amax of its values in slot i modulo `PARTS`. The maxima are an attribute of
the tensor's storage, so that views and autograd's tensors have them, too, and they are freed with the storage. They are valid
while torch's version counter is unchanged: a tensor changed in place, such as an accumulated gradient, is read again. torch does
not count changes by collectives and through `.data`; tensors that these kernels write undergo neither.

An absolute value is stored as the bits of a float32, because they order as integers like the values. NaN is larger than all.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# One slot per program of the reading kernel: a few per multiprocessor. A single slot would be written half a million times.
PARTS = tl.constexpr(1024)
BLOCK = 8192
KEPT = "amax_parts"

_wanted = False


def want(wanted: bool) -> None:
    """Let the kernels of this process compute the amax of their outputs. Default: they do not."""
    global _wanted
    _wanted = wanted


def noted_with(tensor: Tensor) -> Tensor | None:
    """Allocate partial maxima, int32 zeros [PARTS], for the kernel that will write all of `tensor`. None without fp8 casts."""
    if not _wanted:
        return None
    parts = _zeros(tensor.device)
    setattr(tensor.untyped_storage(), KEPT, (parts, _state(tensor)))
    return parts


def amax_parts(tensor: Tensor) -> Tensor:
    """Return the partial maxima of contiguous `tensor`: the stored ones if they are valid, or new ones."""
    stored_parts, state = getattr(tensor.untyped_storage(), KEPT, (None, None))
    return stored_parts if stored_parts is not None and state == _state(tensor) else find(tensor)


def find(tensor: Tensor) -> Tensor:
    parts = _zeros(tensor.device)
    programs = min(PARTS.value, triton.cdiv(tensor.numel(), BLOCK))
    _find[(programs,)](tensor, parts, tensor.numel(), BLOCK, num_warps=8)
    return parts


def _zeros(device: torch.device) -> Tensor:
    return torch.zeros(PARTS.value, dtype=torch.int32, device=device)


def _state(tensor: Tensor) -> tuple[int, int, torch.dtype]:
    """Return a value that changes with the numbers, and differs for a partial view."""
    return tensor._version, tensor.nbytes, tensor.dtype


@triton.jit
def note(values, dtype: tl.constexpr, parts):  # type: ignore[no-untyped-def]
    """Add `values`, float32, which are about to be stored as `dtype`, to this program's partial maximum."""
    # Rounding is monotonic: the maximum, rounded, is the maximum of the rounded values.
    stored = sizes(tl.max(sizes(values)).to(tl.float32, bitcast=True).to(dtype).to(tl.float32))
    tl.atomic_max(parts + tl.program_id(0) % PARTS, stored, sem="relaxed")


@triton.jit
def sizes(values):  # type: ignore[no-untyped-def]
    """Return the bits of the absolute values of float32 `values`."""
    return tl.abs(values).to(tl.int32, bitcast=True)


@triton.jit
def _find(tensor, parts, elements, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    program = tl.program_id(0).to(tl.int64)
    found = tl.zeros([BLOCK], dtype=tl.int32)
    for first in range(program * BLOCK, elements, tl.num_programs(0) * BLOCK):
        at = first + tl.arange(0, BLOCK)
        found = tl.maximum(found, sizes(tl.load(tensor + at, mask=at < elements, other=0.0).to(tl.float32)))
    tl.store(parts + program, tl.max(found))
