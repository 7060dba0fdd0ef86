"""Weight gradients that the GEMMs themselves write or add to the gradient buffers (gradient accumulation fusion).

megatron-core adds them with an extension of apex; PyTorch's GEMMs can do it too. Otherwise a gradient is written, read, and
added to its buffer in a pass of its own: 5 ms of 850 in a step of 2.8 billion parameters on an H200, by the bytes. And a buffer
in float32 gets what the GEMM accumulated in float32, not its rounding to 16 bits.

The first GEMM of a step overwrites its buffer. So nothing has to clear it, and the GEMM does not read zeros: 3 ms of 835,
and twice that where the buffers are float32.

The GEMMs can run later than the backward pass that they belong to (`deferred_gradients`).
"""

from functools import partial
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.parallel_state import get_global_memory_buffer
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from torch import Tensor

from lt_train.megatron import param_and_grad_buffer, tensor_parallel_layers
from lt_train.megatron.tensor_parallel_layers import WeightGradientExtension
from lt_train.ops.deferred_gradients import is_open, later
from lt_train.process.device import CPU

# By address: megatron-core passes the GEMM the buffer, not its weight.
_stale: dict[int, Tensor] = {}


def accumulate_in_gemms() -> None:
    """Let megatron-core's linear layers take these GEMMs for apex's extension."""
    tensor_parallel_layers.use_extension(WeightGradientExtension(accumulate_in_float32, accumulate_in_half))


def accumulate_in_float32(rows: Tensor, gradient: Tensor, buffer: Tensor) -> None:
    """Add the transpose of `gradient` [m, n] times `rows` [m, k] to `buffer` [n, k], or overwrite a buffer that `overwrites`."""
    later(buffer, partial(_accumulate_in_float32, _own(rows), gradient, buffer))


def accumulate_in_half(rows: Tensor, gradient: Tensor, buffer: Tensor) -> None:
    """The same for a buffer in 16 bits."""
    later(buffer, partial(_accumulate, _own(rows), gradient, buffer))


def _accumulate_in_float32(rows: Tensor, gradient: Tensor, buffer: Tensor) -> None:
    if buffer.device.type == CPU:
        add(gradient.t() @ rows, buffer)
    elif rows.dtype == torch.float32:
        _accumulate(rows, gradient, buffer)
    elif overwrites(buffer):
        torch.mm(gradient.t(), rows, out_dtype=torch.float32, out=buffer)
    else:
        torch.addmm(buffer, gradient.t(), rows, out_dtype=torch.float32, out=buffer)


def _accumulate(rows: Tensor, gradient: Tensor, buffer: Tensor) -> None:
    if overwrites(buffer):
        torch.mm(gradient.t(), rows, out=buffer)
    else:
        buffer.addmm_(gradient.t(), rows)


def _own(rows: Tensor) -> Tensor:
    """`rows` in memory that stays until a deferred GEMM: with sequence parallelism all layers' are gathered in one place."""
    if not is_open():
        return rows
    shared = get_global_memory_buffer().buffer.values()
    address = rows.untyped_storage().data_ptr()
    return rows.clone() if any(parameter.untyped_storage().data_ptr() == address for parameter in shared) else rows


def add(weight_gradient: Tensor, buffer: Tensor) -> None:
    """For a GEMM that cannot accumulate into its output."""
    if overwrites(buffer):
        buffer.copy_(weight_gradient)
    else:
        buffer.add_(weight_gradient)


def overwrites(buffer: Tensor) -> bool:
    """Whether `buffer` has the last step's numbers, which the caller now overwrites: true once in a step."""
    return _stale.pop(buffer.data_ptr(), None) is not None


def accumulates_in_gemm(weight: Any) -> bool:
    """Return whether gradient accumulation fusion is on for `weight`, which no megatron-core linear layer holds."""
    return getattr(weight, "accumulates_in_gemm", False)


def accumulate_weight_gradient(rows: Tensor, gradient: Tensor, weight: Any) -> Tensor:
    """Add the gradient of `weight` [n, k], from `rows` [m, k] and `gradient` [m, n], to its `main_grad`. Returns `written`.

    A weight that FSDP has gathered has no such buffer: its gradient is returned. `gradient` may have fewer columns: the weight's
    last rows then have no gradient, ever.
    """
    if not hasattr(weight, "main_grad"):
        return _product(rows, gradient, weight)
    buffer = weight.main_grad[: gradient.shape[1]]
    if buffer.dtype == torch.float32:
        accumulate_in_float32(rows, gradient, buffer)
    else:
        accumulate_in_half(rows, gradient, buffer)
    if len(buffer) < len(weight):
        weight.main_grad[len(buffer) :].zero_()
    return written(weight)


def _product(rows: Tensor, gradient: Tensor, weight: Tensor) -> Tensor:
    result = torch.empty_like(weight)
    torch.mm(gradient.t(), rows, out=result[: gradient.shape[1]])
    result[gradient.shape[1] :].zero_()
    return result


def written(weight: Any) -> Tensor:
    """Say that the gradient of `weight` is in its buffer. Returns what megatron-core's hook still wants: any numbers, which it
    does not read, or zeros for a tied weight, where it adds the embedding's gradient and reads the sum."""
    weight.grad_added_to_main_grad = True
    return torch.zeros_like(weight) if getattr(weight, "zero_out_wgrad", False) else torch.empty_like(weight)


def leave_uncleared(chunk: DistributedDataParallel) -> None:
    """Let `zero_grad_buffer` of `chunk` clear only those gradients that no GEMM of a linear layer writes."""
    linear = (module for module in chunk.modules() if isinstance(module, ColumnParallelLinear | RowParallelLinear))
    # An output layer that uses the embedding's weight has none of its own.
    written = {id(module.weight) for module in linear if module.weight is not None}
    written |= {id(parameter) for parameter in chunk.parameters() if accumulates_in_gemm(parameter)}
    for buffer in chunk.buffers + chunk.expert_parallel_buffers:
        gradients = [(parameter.main_grad, id(parameter) in written) for parameter in buffer.params]
        cleared = [gradient for gradient, is_written in gradients if not is_written]
        stale = {gradient.data_ptr(): gradient for gradient, is_written in gradients if is_written}
        param_and_grad_buffer.replace_reset(buffer, partial(_reset, cleared, stale))


def forget() -> None:
    """Keep no buffers of a model that is trained no more."""
    _stale.clear()


def _reset(cleared: list[Tensor], stale: dict[int, Tensor]) -> None:
    if cleared:
        torch._foreach_zero_(cleared)
    _stale.update(stale)


def finish(*arguments: Any, finalize: Any, **settings: Any) -> None:
    """Clear what no GEMM of this step has written, such as the gradients of an expert without tokens, then `finalize` all."""
    for gradient in _stale.values():
        gradient.zero_()
    _stale.clear()
    finalize(*arguments, **settings)
