"""The MLP of a dense layer and of shared experts: from [.., h] to [.., f], an activation, and back to [.., h].

The weights have megatron-core's names: `linear_fc1` [f, h], or [2 f, h] for gates and ups, and `linear_fc2` [h, f]. The inner
width is divided among tensor-parallel ranks, the gates and the ups separately.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from megatron.core.fusions.fused_bias_geglu import bias_geglu_impl
from megatron.core.fusions.fused_bias_gelu import bias_gelu_impl
from megatron.core.fusions.fused_bias_swiglu import bias_swiglu_impl
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.mlp import apply_swiglu_sharded_factory
from megatron.core.transformer.module import MegatronModule
from torch import Tensor

from lt_train.models.linear import Input, Linears, Outputs
from lt_train.models.norms import compiled
from lt_train.ops.row_exchange import Exchange
from lt_train.parallel.ddp import wait_for_weights

# Maps the output of the first layer, [.., 2 f] or [.., f], and its bias to [.., f].
Activation = Callable[[Tensor, Tensor | None], Tensor]


class MLP(MegatronModule):  # type: ignore[misc]
    """Two linear layers with an `activation` between them. If it is None, the second layer computes SwiGLU in its cast to fp8."""

    def __init__(
        self,
        config: TransformerConfig,
        linears: Linears,
        width: int,
        activation: Activation | None,
        norm_behind: bool = False,
    ):
        super().__init__(config=config)
        # Under megatron-core's name, because an activation may learn (`xielu.py`).
        self.activation_func = activation
        self.is_gated = config.gated_linear_unit
        outputs, stride = (2 * width, 2) if self.is_gated else (width, 1)
        bias = config.add_bias_linear
        self.linear_fc1 = linears.column(config.hidden_size, outputs, bias=bias, skip_bias_add=True, stride=stride)
        source = Input.GATE_UP if activation is None else Input.ACTIVATION
        self.linear_fc2 = linears.row(width, config.hidden_size, bias=bias, source=source, norm_behind=norm_behind)

    def forward(self, hidden_states: Tensor) -> Outputs:
        """Return the output [s, b, h] for `hidden_states` [s, b, h], and the bias, which the caller adds."""
        output, bias = self.linear_fc1(hidden_states)
        if self.activation_func is not None:
            output = self.activation_func(output, bias)
        return self.linear_fc2(output)  # type: ignore[no-any-return]

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the sharded state of megatron-core's checkpoints: gates and ups are two shards of a tensor."""
        state: dict[str, Any] = super().sharded_state_dict(prefix, sharded_offsets, metadata)
        if self.is_gated:
            for name in (f"{prefix}linear_fc1.weight", f"{prefix}linear_fc1.bias"):
                if name in state:
                    state[name] = apply_swiglu_sharded_factory(state[name], sharded_offsets)
        return state


class GatedSharedExperts(MLP):
    """Shared experts whose output is multiplied by the sigmoid of a projection of the hidden states (Qwen2-MoE, Qwen3-Next)."""

    def __init__(self, config: TransformerConfig, linears: Linears, width: int, activation: Activation | None):
        super().__init__(config, linears, width, activation)
        weight = torch.empty(1, config.hidden_size, dtype=config.params_dtype, device=torch.cuda.current_device())
        # Under megatron-core's name. Sequence-parallel ranks sum its gradients.
        self.gate_weight = torch.nn.Parameter(weight)
        self.gate_weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, hidden_states: Tensor) -> Outputs:
        output, bias = super().forward(hidden_states)
        gate = torch.nn.functional.linear(hidden_states, self.gate_weight).sigmoid()
        return output * gate, bias


class GatedGemmMLP(MLP):
    """SwiGLU in the epilogues of the GEMMs (`lt_train.ops.fused_swiglu_mlp`), forward and backward."""

    def __init__(self, config: TransformerConfig, linears: Linears, width: int, exchange: Exchange, keeps_activation: bool):
        super().__init__(config, linears, width, torch_activation(config))
        self.exchange, self.keeps_activation = exchange, keeps_activation

    def forward(self, hidden_states: Tensor) -> Outputs:
        from lt_train.ops.fused_swiglu_mlp import gated_mlp

        # The kernels read the weights without calling the layers, so the hooks that wait for all-gathered weights must run here.
        wait_for_weights(self.linear_fc1, self.linear_fc2)
        weights = self.linear_fc1.weight, self.linear_fc2.weight
        return gated_mlp(hidden_states, *weights, self.exchange, keeps_activation=self.keeps_activation), None


def swiglu_kernel(gate_up: Tensor, bias: Tensor | None) -> Tensor:
    """SwiGLU for a layer without biases, with one kernel in the forward and one in the backward pass."""
    from lt_train.kernels.swiglu import swiglu

    assert bias is None
    return swiglu(gate_up)


def scaled_swiglu(gate_factor: float, output_factor: float) -> Activation:
    """SwiGLU with factors of the gates in front of SiLU and of the output, for a layer without biases."""

    def activation(gate_up: Tensor, bias: Tensor | None) -> Tensor:
        assert bias is None
        return compiled(_scaled_swiglu)(gate_up, gate_factor, output_factor)

    return activation


def _scaled_swiglu(gate_up: Tensor, gate_factor: float, output_factor: float) -> Tensor:
    gate, up = torch.chunk(gate_up, 2, dim=-1)
    return torch.nn.functional.silu(gate * gate_factor) * up * output_factor


def torch_activation(config: TransformerConfig) -> Activation:
    """Return megatron-core's activation: fused with the bias by torch.compile on a GPU, eager on a CPU."""
    if not config.bias_activation_fusion:
        return functools.partial(_apply_gated if config.gated_linear_unit else _apply_plain, config.activation_func)
    if config.activation_func is torch.nn.functional.silu:
        return _swiglu
    return bias_geglu_impl if config.gated_linear_unit else bias_gelu_impl  # type: ignore[no-any-return]


def _swiglu(gate_up: Tensor, bias: Tensor | None) -> Tensor:
    return bias_swiglu_impl(gate_up, bias, False, False)  # type: ignore[no-any-return]


def _apply_gated(function: Callable[[Tensor], Tensor], gate_up: Tensor, bias: Tensor | None) -> Tensor:
    gate, up = torch.chunk(gate_up if bias is None else gate_up + bias, 2, dim=-1)
    return function(gate) * up


def _apply_plain(function: Callable[[Tensor], Tensor], hidden: Tensor, bias: Tensor | None) -> Tensor:
    return function(hidden if bias is None else hidden + bias)
