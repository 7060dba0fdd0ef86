"""Compute the amax of a tensor, its largest absolute value, which determines the fp8 scale.

The kernel that writes a tensor also writes partial maxima: program i stores the amax of its values in slot i modulo `PARTS`. If
no kernel wrote them, another kernel reads the tensor. The maxima are an attribute of the tensor's storage, so that views and
autograd's tensors have them, too, and they are freed with the storage. They are valid while torch's version counter is unchanged:
a tensor changed in place, such as an accumulated gradient, is read again. torch does not count changes by collectives and through
`.data`; tensors that these kernels write undergo neither.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# The reading kernel has one program per slot: a few per multiprocessor. A single slot would be written half a million times.
PARTS = tl.constexpr(1024)
BLOCK = 8192
ATTRIBUTE = "amax_parts"

_is_enabled = False


def enable(is_enabled: bool) -> None:
    """Set whether this process's kernels compute the amax of their outputs. Default: they do not."""
    global _is_enabled
    _is_enabled = is_enabled


def allocate_parts(tensor: Tensor) -> Tensor | None:
    """Allocate partial maxima, int32 zeros [PARTS], for the kernel that will write all of `tensor`. None without fp8 casts."""
    if not _is_enabled:
        return None
    parts = _zeros(tensor.device)
    setattr(tensor.untyped_storage(), ATTRIBUTE, (parts, _state(tensor)))
    return parts


def amax_parts(tensor: Tensor) -> Tensor:
    """Return the partial maxima of contiguous `tensor`: the stored ones if they are valid, or new ones."""
    stored_parts, state = getattr(tensor.untyped_storage(), ATTRIBUTE, (None, None))
    return stored_parts if stored_parts is not None and state == _state(tensor) else compute_parts(tensor)


def compute_parts(tensor: Tensor) -> Tensor:
    parts = _zeros(tensor.device)
    programs = min(PARTS.value, triton.cdiv(tensor.numel(), BLOCK))
    _compute[(programs,)](tensor, parts, tensor.numel(), BLOCK, num_warps=8)
    return parts


def _zeros(device: torch.device) -> Tensor:
    return torch.zeros(PARTS.value, dtype=torch.int32, device=device)


def _state(tensor: Tensor) -> tuple[int, int, torch.dtype]:
    """Return a value that changes if the numbers change, and that differs between a tensor and its partial view."""
    return tensor._version, tensor.nbytes, tensor.dtype


@triton.jit
def store_amax(values, dtype: tl.constexpr, parts):  # type: ignore[no-untyped-def]
    """Raise this program's partial maximum to the amax of `values`, float32, which the caller stores as `dtype`."""
    # Rounding is monotonic: the maximum, rounded, is the maximum of the rounded values.
    stored = magnitude_bits(tl.max(magnitude_bits(values)).to(tl.float32, bitcast=True).to(dtype).to(tl.float32))
    tl.atomic_max(parts + tl.program_id(0) % PARTS, stored, sem="relaxed")


@triton.jit
def magnitude_bits(values):  # type: ignore[no-untyped-def]
    """Return the bits of the absolute values of float32 `values`.

    As integers, the bits order like the values, and NaN is larger than all numbers.
    """
    return tl.abs(values).to(tl.int32, bitcast=True)


@triton.jit
def _compute(tensor, parts, elements, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    program = tl.program_id(0).to(tl.int64)
    amax_bits = tl.zeros([BLOCK], dtype=tl.int32)
    for first in range(program * BLOCK, elements, tl.num_programs(0) * BLOCK):
        offsets = first + tl.arange(0, BLOCK)
        amax_bits = tl.maximum(
            amax_bits, magnitude_bits(tl.load(tensor + offsets, mask=offsets < elements, other=0.0).to(tl.float32))
        )
    tl.store(parts + program, tl.max(amax_bits))
