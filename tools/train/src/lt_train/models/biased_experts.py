"""Experts with biases and gpt-oss's clamped SwiGLU, computed as transformers does.

megatron-core has three faults here. The fused activation of its `MLP.forward` clamps before it adds the bias; without the fusion
that is right, in five passes over the widest tensor there is. It adds the output's bias in place to a view, which autograd
refuses. And it has experts with biases only where each is whole on its rank: with tensor parallelism, ranks then split the tokens
(as sequence parallelism left them) and not the experts. Their gradients are summed over the ranks that have the same expert, and
then those of some biases once more over tensor-parallel ranks, because they are marked so; and the norm of the gradients would
not count the others on each rank.

Compiled, the activation is one pass, and so is the bias. On a CPU nothing is compiled.
"""

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer.moe.experts import SequentialMLP
from torch import Tensor

from lt_shared.architecture import CLAMPED_SWIGLU_ALPHA, CLAMPED_SWIGLU_LIMIT


def compute_biased_experts(model: GPTModel) -> None:
    """Let the experts of `model` compute so, and mark their weights as whole on each tensor-parallel rank."""
    for experts in model.decoder.modules():
        if isinstance(experts, SequentialMLP):
            for expert in experts.local_experts:
                expert.forward = partial(_forward, expert)
            for parameter in experts.parameters():
                parameter.tensor_model_parallel = True
                # Their gradients are summed over these ranks once, as those of all ranks that have the same expert.
                parameter.sequence_parallel = False


def _forward(expert: Any, hidden_states: Tensor, per_token_scale: Tensor, **unused: Any) -> tuple[Tensor, None]:
    """Tokens [n, h], and the probability of each [n]."""
    gate_up, bias = expert.linear_fc1(hidden_states)
    output, output_bias = expert.linear_fc2(_compiled(clamped_swiglu)(gate_up, bias, per_token_scale))
    return _compiled(_add_scaled)(output, output_bias, per_token_scale), None


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
