"""Experts without tensor parallelism: one weight tensor for all experts of a rank, multiplied by grouped GEMMs.

megatron-core has grouped GEMMs with TransformerEngine only. Its `SequentialMLP` computes one expert after another: for the 128
experts of a layer of Qwen3-30B-A3B some 1,500 kernels, each too small to fill a GPU.

Checkpoints have the layout of `SequentialMLP`: a tensor [layers, experts, ...] with one shard per expert.
"""

from functools import partial
from typing import Any

import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer import TransformerConfig
from megatron.core.utils import get_pg_rank, get_pg_size
from torch import Tensor

from lt_train.ops.expert_mlp import DispatchedRows, Operations, Routing, RowSource, Weights, expert_mlp
from lt_train.parallel.ddp import wait_for_weights


class GroupedLinear(torch.nn.Module):
    """Holds a `weight` [experts, outputs, inputs] and an optional `bias` [experts, outputs] for `GroupedExperts`."""

    def __init__(self, experts: int, outputs: int, inputs: int, config: TransformerConfig):
        super().__init__()
        self.weight = _parameter((experts, outputs, inputs), config)
        self.weight.accumulates_in_gemm = config.gradient_accumulation_fusion
        self.bias = _parameter((experts, outputs), config) if config.add_bias_linear else None


def _parameter(shape: tuple[int, ...], config: TransformerConfig) -> Any:
    device = "meta" if config.init_model_with_meta_device else torch.cuda.current_device()
    parameter: Any = torch.nn.Parameter(torch.empty(shape, dtype=config.params_dtype, device=device))
    # Each tensor-parallel rank holds the whole parameter and the gradient for its local tokens. These flags make megatron-core
    # sum the gradients once, over all ranks with the same expert, and not a second time over the tensor-parallel ranks.
    parameter.tensor_model_parallel, parameter.sequence_parallel = True, False
    return parameter


class GroupedExperts(torch.nn.Module):
    """The `count` local experts, with SwiGLU or with gpt-oss's clamped SwiGLU and biases, computed by `operations`."""

    def __init__(self, config: TransformerConfig, count: int, groups: ProcessGroupCollection, operations: Operations):
        super().__init__()
        self.experts, self.ep_group, self.dp_group = count, groups.ep, groups.expt_dp
        self.linear_fc1 = GroupedLinear(count, 2 * config.moe_ffn_hidden_size, config.hidden_size, config)
        self.linear_fc2 = GroupedLinear(count, config.hidden_size, config.moe_ffn_hidden_size, config)
        self.operations = operations

    def forward(self, rows: Tensor, routing: RowSource | Tensor, probabilities: Tensor) -> tuple[Tensor, None]:
        """Compute tokens [t, h] routed by a `RowSource`, or rows [m, h] sorted by expert.

        For sorted rows, `routing` holds the number of rows per expert, and `probabilities` is [m]. The bias of the second matrix
        is added here only if this rank has all rows of a token.
        """
        # The kernels read the weights without calling the layers, so the hooks that wait for all-gathered weights must run here.
        wait_for_weights(self.linear_fc1, self.linear_fc2)
        chosen = DispatchedRows.from_counts(routing, rows) if isinstance(routing, Tensor) else routing
        bias = self.linear_fc2.bias if isinstance(chosen, Routing | DispatchedRows) else None
        weights = Weights(self.linear_fc1.weight, self.linear_fc2.weight, self.linear_fc1.bias, bias)
        return expert_mlp(rows, probabilities, chosen, weights, self.operations), None

    def with_bias(self, output: Tensor, probabilities: Tensor) -> Tensor:
        """Add the second matrix's biases to `output` [t, h], weighted by the `probabilities` [t, experts on all ranks]."""
        if self.linear_fc2.bias is None:
            return output
        bias: Tensor = gather_from_sequence_parallel_region(self.linear_fc2.bias.float(), group=self.ep_group)
        return (output + probabilities.float() @ bias).to(output.dtype)

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> dict[str, Any]:
        first, total = get_pg_rank(self.ep_group) * self.experts, get_pg_size(self.ep_group) * self.experts
        # A factory, because the parameter holds all local experts and the checkpoint has a shard per expert.
        build = partial(_entries, sharded_offsets, first, total)
        replica = (0, 0, get_pg_rank(self.dp_group))
        return {
            f"{prefix}{name}": ShardedTensorFactory(f"{prefix}experts.{name}", parameter, build, torch.stack, replica)
            for name, parameter in self.named_parameters()
        }


def _entries(
    layer: tuple[Any, ...], first: int, total: int, key: str, parameter: Tensor, replica: Any, flattened_range: Any = None
) -> list[ShardedTensor]:
    """Return a shard for each local expert in `parameter`. The first local expert is number `first` of `total`."""
    return [
        ShardedTensor.from_rank_offsets(
            key,
            expert,
            *layer,
            # The axis of the experts precedes the parameter's axes and follows the axis of the layers, if there is one.
            (len(layer), first + number, total),
            replica_id=replica,
            prepend_axis_num=len(layer) + 1,
        )
        for number, expert in enumerate(parameter)
    ]
