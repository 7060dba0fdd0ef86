"""Experts computed one after another: experts with tensor parallelism, and experts without grouped GEMMs.

Experts with biases and gpt-oss's clamped SwiGLU (`BiasedExperts`) compute the same as transformers. megatron-core's `MLP.forward`
does not: its fused activation clamps before it adds the bias, and it adds the output's bias in place to a view, which autograd
refuses. Without the fusion, the activation is right but takes five passes over the widest tensor; compiled here, it takes one.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe.experts import SequentialMLP
from torch import Tensor

from lt_shared.models.architecture import CLAMPED_SWIGLU_ALPHA, CLAMPED_SWIGLU_LIMIT


def sequential_experts(config: TransformerConfig, count: int, groups: ProcessGroupCollection) -> SequentialMLP:
    """Build the `count` local experts."""
    kind = BiasedExperts if config.add_bias_linear else SequentialMLP
    return kind(count, config, MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear), pg_collection=groups)


class BiasedExperts(SequentialMLP):  # type: ignore[misc]
    """Experts with biases, without tensor parallelism: tensor-parallel ranks split the tokens, as in sequence parallelism."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        for parameter in self.parameters():
            # Counted in the gradient norm on every tensor-parallel rank; megatron-core would count only some biases.
            parameter.tensor_model_parallel = True
            # The gradients are summed once, over all ranks with the same expert. megatron-core marks some biases as
            # sequence-parallel and would sum them a second time over the tensor-parallel ranks.
            parameter.sequence_parallel = False

    def forward(self, rows: Tensor, counts: Tensor, probabilities: Tensor) -> tuple[Tensor, None]:
        """Compute `rows` [m, h], sorted by expert. `counts` are the rows per expert; `probabilities` [m] scale the rows."""
        sizes = counts.tolist()
        parts = zip(self.local_experts, torch.split(rows, sizes), torch.split(probabilities, sizes), strict=True)
        return torch.cat([_output(expert, part, scale) for expert, part, scale in parts]), None


def _output(expert: Any, rows: Tensor, scale: Tensor) -> Tensor:
    gate_up, bias = expert.linear_fc1(rows)
    output, output_bias = expert.linear_fc2(_compiled(clamped_swiglu)(gate_up, bias, scale))
    return _compiled(_add_scaled)(output, output_bias, scale)


def clamped_swiglu(gate_up: Tensor, bias: Tensor, scale: Tensor) -> Tensor:
    """Return x sigmoid(1.702 x) (up + 1) `scale`, for `gate_up` [n, 2 f] plus `bias` [2 f]; `scale` is [n].

    x are the gates, the first f columns.
    """
    gate, up = (gate_up + bias).chunk(2, dim=-1)
    gate, up = gate.clamp(max=CLAMPED_SWIGLU_LIMIT), up.clamp(-CLAMPED_SWIGLU_LIMIT, CLAMPED_SWIGLU_LIMIT)
    return (gate * torch.sigmoid(CLAMPED_SWIGLU_ALPHA * gate) * (up + 1) * scale.unsqueeze(-1)).to(gate_up.dtype)


def _add_scaled(output: Tensor, bias: Tensor, scale: Tensor) -> Tensor:
    return (output + bias * scale.unsqueeze(-1)).to(output.dtype)


@functools.cache
def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compile `function` once for any number of tokens, because it changes with each expert and step. A CPU compiles nothing."""
    return torch.compile(function, dynamic=True)
