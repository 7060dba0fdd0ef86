"""A Mamba-2 layer (arXiv:2405.21060; Nemotron-H): a recurrent state in place of attention over all tokens.

    z, x, B, C, dt = in_proj(hidden states)
    x, B, C = silu(causal convolution(x, B, C))
    mixed = scan(x, B, C, step softplus(dt + dt_bias), decay exp(-exp(A_log) step)) + D x
    output = out_proj(norm(mixed silu(z)))

Falcon-H1 multiplies z, x, B, C and dt by constant factors, and may lack the norm.

Parameters have the names and checkpoint shards of megatron-core's MambaMixer. Tensor-parallel ranks divide the groups of heads,
context-parallel ranks the heads between the projections. The norm is over the channels of a group.
"""

from typing import Any

import torch
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor
from torch.nn.functional import silu, softplus

from lt_shared.models.architecture import Mamba, SideBySide
from lt_train.models import recomputation
from lt_train.models.linear import Linears, Outputs
from lt_train.models.mixers.convolution import Convolution, sharded_parameter, split_rows
from lt_train.models.mixers.core_attention import document_numbers
from lt_train.models.norms import compiled
from lt_train.ops.mamba_scan import mamba_scan
from lt_train.parallel.head_exchange import heads_of_all_tokens, local_rows, tokens_of_all_heads

_CONVOLVED = ("x", "B", "C")


class MambaMixer(MegatronModule):  # type: ignore[misc]
    """Mix hidden states [s, b, h] of whole samples; needs no positions.

    The backward pass computes all between the two projections again, because the matrices between the tokens of a chunk take more
    memory than all other activations of the layer.
    """

    def __init__(self, config: TransformerConfig, sizes: Mamba, linears: Linears, factors: SideBySide | None = None):
        super().__init__(config=config)
        self.sizes, ranks = sizes, config.tensor_model_parallel_size
        self.local_sizes = {part: size // ranks for part, size in sizes.part_sizes.items()}
        self.in_proj = linears.column(config.hidden_size, sizes.projected_size, bias=False)
        self.conv1d = Convolution(config, sizes.convolved_size, sizes.taps, has_silu=True, has_bias=sizes.convolution_bias)
        heads = sizes.mamba_num_heads
        self.context_ranks, self.head_part = config.context_parallel_size, (heads // ranks, heads // ranks)
        groups = {"x": heads // ranks, "B": sizes.mamba_num_groups // ranks, "C": sizes.mamba_num_groups // ranks}
        self.convolved_parts = [(self.local_sizes[part], groups[part]) for part in _CONVOLVED]
        self.dt_bias, self.A_log, self.D = (sharded_parameter(config, heads) for _ in range(3))
        self.norm = None
        if sizes.has_norm:
            self.norm = GatedGroupNorm(config, sizes.inner_size, sizes.mamba_num_groups, config.layernorm_epsilon)
        self.out_proj = linears.row(sizes.inner_size, config.hidden_size, bias=False)
        # The factor of a part contains the factor of the input.
        self.part_factors = None if factors is None else [factors.mamba_input * factor for factor in factors.mamba_parts]

    def forward(self, hidden_states: Tensor, documents: Tensor | None, angles: Tensor | None) -> Outputs:
        """Return [s, b, h], and no bias. `documents` [b, n + 1] are document borders; `angles` is unused."""
        projected, _ = self.in_proj(hidden_states)
        is_recomputed = self.training and torch.is_grad_enabled()
        if self.context_ranks == 1:
            numbers = None if documents is None else document_numbers(documents, len(projected))
            return self.out_proj(recomputation.compute(self._mix, is_recomputed, projected, numbers))  # type: ignore[no-any-return]
        gates, channels = self._split_gates(projected)
        channels = heads_of_all_tokens(channels, [*self.convolved_parts, self.head_part])
        numbers = None if documents is None else document_numbers(documents, len(channels))
        scanned = recomputation.compute(self._scan, is_recomputed, channels, numbers).flatten(-2).to(gates.dtype)
        # The norm is over all heads of a group, which several context-parallel ranks may have computed.
        scanned = tokens_of_all_heads(scanned)
        scanned = scanned.reshape(*gates.shape[:2], -1, self.sizes.mamba_head_dim)
        return self.out_proj(recomputation.compute(self._apply_gates, is_recomputed, scanned, gates))  # type: ignore[no-any-return]

    def _mix(self, projected: Tensor, numbers: Tensor | None) -> Tensor:
        """Return [s, b, heads x p] for the `projected` channels [s, b, c] and the tokens' document `numbers` [b, s]."""
        gates, channels = self._split_gates(projected)
        return self._apply_gates(self._scan(channels, numbers), gates)

    def _split_gates(self, projected: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gates, and the channels of x, B, C and dt."""
        local = self.local_sizes
        if self.part_factors is not None:
            projected = compiled(_multiply_parts)(projected, self.part_factors, list(local.values()))
        gates, channels = torch.split(projected, [local["z"], projected.shape[-1] - local["z"]], dim=-1)
        return gates, channels

    def _apply_gates(self, mixed: Tensor, gates: Tensor) -> Tensor:
        """Return [s, b, heads x p] for `mixed` [s, b, heads, p]."""
        gated: Tensor = compiled(_gate)(mixed, gates) if self.norm is None else self.norm(mixed, gates)
        return gated

    def _scan(self, channels: Tensor, numbers: Tensor | None) -> Tensor:
        """Return [s, b, heads, p], float32, for the `channels` of x, B, C and dt."""
        sizes = self.sizes
        convolved = [size // min(groups, self.context_ranks) for size, groups in self.convolved_parts]
        mixed, steps = torch.split(channels, [sum(convolved), channels.shape[-1] - sum(convolved)], dim=-1)
        mixed = self.conv1d(mixed, None if numbers is None else numbers.t(), self.convolved_parts)
        values, inputs, outputs = torch.split(mixed.transpose(0, 1), convolved, dim=-1)
        values = values.reshape(*values.shape[:2], -1, sizes.mamba_head_dim)
        inputs, outputs = (part.reshape(*part.shape[:2], -1, sizes.mamba_state_dim) for part in (inputs, outputs))
        biases, log_rates, factors = (local_rows(vector, [self.head_part]) for vector in (self.dt_bias, self.A_log, self.D))
        steps, rates = compiled(_steps_and_rates)(steps.transpose(0, 1), biases, log_rates, sizes.least_step)
        scanned = mamba_scan(values, inputs, outputs, steps, rates, numbers)
        return compiled(_add_values)(scanned, values, factors).transpose(0, 1)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the sharded state of megatron-core's checkpoints: a tensor per part of the projection and the convolution."""
        state: dict[str, Any] = super().sharded_state_dict(prefix, sharded_offsets, metadata)
        vectors = {"dt_bias": self.dt_bias, "A_log": self.A_log, "D": self.D}
        state |= make_sharded_tensors_for_checkpoint(vectors, prefix, dict.fromkeys(vectors, 0), sharded_offsets)
        convolved = {part: self.local_sizes[part] for part in _CONVOLVED}
        parts = {"in_proj.weight": self.local_sizes, "conv1d.weight": convolved, "conv1d.bias": convolved}
        for name, rows in parts.items():
            if prefix + name in state:
                state[prefix + name] = split_rows(state[prefix + name], rows)
        return state


class GatedGroupNorm(torch.nn.Module):
    """Multiply by the SiLU of a gate, then normalize the channels per group by their root mean square."""

    def __init__(self, config: TransformerConfig, channels: int, groups: int, eps: float):
        super().__init__()
        self.group_channels, self.eps = channels // groups, eps
        self.weight = sharded_parameter(config, channels)

    def forward(self, heads: Tensor, gates: Tensor) -> Tensor:
        """Return [s, b, heads x p] in the dtype of `gates`, for `heads` [s, b, heads, p] and `gates` [s, b, heads x p]."""
        return compiled(_gated_norm)(heads, gates, self.weight, self.group_channels, self.eps)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        state = self.state_dict(prefix="", keep_vars=True)
        sharded: dict[str, Any] = make_sharded_tensors_for_checkpoint(state, prefix, {"weight": 0}, sharded_offsets)
        return sharded


def _steps_and_rates(steps: Tensor, biases: Tensor, log_rates: Tensor, least: float) -> tuple[Tensor, Tensor]:
    """Return float32 time steps [b, s, heads], and the states' decay rates [heads]."""
    return softplus(steps.float() + biases.float()).clamp(min=least), -log_rates.float().exp()


def _add_values(scanned: Tensor, values: Tensor, factors: Tensor) -> Tensor:
    return scanned + factors.float().unsqueeze(-1) * values.float()


def _multiply_parts(projected: Tensor, factors: list[float], sizes: list[int]) -> Tensor:
    parts = zip(torch.split(projected, sizes, dim=-1), factors, strict=True)
    return torch.cat([part * factor for part, factor in parts], dim=-1)


def _gate(heads: Tensor, gates: Tensor) -> Tensor:
    return (heads.flatten(-2) * silu(gates.float())).to(gates.dtype)


def _gated_norm(heads: Tensor, gates: Tensor, weight: Tensor, group_channels: int, eps: float) -> Tensor:
    gated = heads.flatten(-2) * silu(gates.float())
    grouped = gated.reshape(*gated.shape[:2], -1, group_channels)
    normed = grouped * torch.rsqrt(grouped.square().mean(-1, keepdim=True) + eps)
    return normed.flatten(-2).mul(weight.float()).to(gates.dtype)
