"""Experts that are computed one after another: those that tensor-parallel ranks share, and those for which there are no grouped
GEMMs.

Experts with biases and gpt-oss's clamped SwiGLU are computed as transformers does. megatron-core has three faults here. The fused
activation of its `MLP.forward` clamps before it adds the bias; without the fusion that is right, in five passes over the widest
tensor there is. It adds the output's bias in place to a view, which autograd refuses. And it has experts with biases only where
each is whole on its rank: with tensor parallelism, ranks then split the tokens (as sequence parallelism left them) and not the
experts. Their gradients are summed over the ranks that have the same expert, and then those of some biases once more over
tensor-parallel ranks, because they are marked so; and the norm of the gradients would not count the others on each rank.

Compiled, the activation is one pass, and so is the bias. On a CPU nothing is compiled.
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
    """This rank's `count` experts."""
    kind = BiasedExperts if config.add_bias_linear else SequentialMLP
    return kind(count, config, MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear), pg_collection=groups)


class BiasedExperts(SequentialMLP):  # type: ignore[misc]
    """Experts with biases, each whole on its rank."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        for parameter in self.parameters():
            parameter.tensor_model_parallel = True
            # Their gradients are summed over these ranks once, as those of all ranks that have the same expert.
            parameter.sequence_parallel = False

    def forward(self, rows: Tensor, counts: Tensor, probabilities: Tensor) -> tuple[Tensor, None]:
        """Rows [m, h] sorted by expert, how many each expert has, and the probability of each row [m]."""
        sizes = counts.tolist()
        parts = zip(self.local_experts, torch.split(rows, sizes), torch.split(probabilities, sizes), strict=True)
        return torch.cat([_output(expert, part, scale) for expert, part, scale in parts]), None


def _output(expert: Any, rows: Tensor, scale: Tensor) -> Tensor:
    gate_up, bias = expert.linear_fc1(rows)
    output, output_bias = expert.linear_fc2(_compiled(clamped_swiglu)(gate_up, bias, scale))
    return _compiled(_add_scaled)(output, output_bias, scale)


def clamped_swiglu(gate_up: Tensor, bias: Tensor, scale: Tensor) -> Tensor:
    """Of gates, then ups [n, 2 f], and their bias [2 f]: x sigmoid(1.702 x) times the up plus 1, times a token's `scale` [n]."""
    gate, up = (gate_up + bias).chunk(2, dim=-1)
    gate, up = gate.clamp(max=CLAMPED_SWIGLU_LIMIT), up.clamp(-CLAMPED_SWIGLU_LIMIT, CLAMPED_SWIGLU_LIMIT)
    return (gate * torch.sigmoid(CLAMPED_SWIGLU_ALPHA * gate) * (up + 1) * scale.unsqueeze(-1)).to(gate_up.dtype)


def _add_scaled(output: Tensor, bias: Tensor, scale: Tensor) -> Tensor:
    return (output + bias * scale.unsqueeze(-1)).to(output.dtype)


@functools.cache
def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compiled once for any number of tokens, which is another one for each expert and step."""
    return torch.compile(function, dynamic=True)
