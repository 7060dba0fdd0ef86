"""Let linear layers of tensor parallelism overlap their collectives with their GEMMs (`ops.peer_exchange`).

megatron-core overlaps the collectives of the backward pass that have a weight's gradient beside them, by NCCL; those of the
forward pass wait.
"""

from functools import partial
from typing import Any

import torch
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from torch import Tensor

from lt_train.ops.parallel_linear import column_parallel, row_parallel
from lt_train.ops.row_exchange import Exchange


def overlap(part: torch.nn.Module, exchange: Exchange) -> None:
    """Of all linear layers in `part` of a model that gather or scatter the rows of sequence parallelism, but those of experts."""
    module: Any
    for module in part.modules():
        if type(module) is ColumnParallelLinear and module.sequence_parallel and not module.is_expert:
            module._forward_impl = partial(_column_parallel, exchange)
        elif type(module) is RowParallelLinear and module.sequence_parallel and not module.is_expert:
            module.forward = partial(_row_parallel, module, exchange)


def _column_parallel(exchange: Exchange, *, input: Tensor, weight: Tensor, bias: Tensor | None, **unused: Any) -> Tensor:
    output = column_parallel(input, weight, exchange)
    return output if bias is None else output + bias


def _row_parallel(layer: Any, exchange: Exchange, input_: Tensor) -> tuple[Tensor, Tensor | None]:
    output = row_parallel(input_, layer.weight, exchange)
    if layer.skip_bias_add or layer.bias is None:
        return output, layer.bias
    return output + layer.bias, None
