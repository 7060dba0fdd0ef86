"""Kimi Delta Attention (arXiv:2510.26692; Kimi Linear): gated delta whose decay has a number for every channel of a key.

    queries, keys, values, betas = in_proj(hidden states)
    queries, keys, values = silu(causal convolution(queries, keys, values))
    decay = exp(-exp(A_log) softplus(decay_up(decay_down(hidden states)) + dt_bias))
    mixed = delta rule(queries, keys, values, decay, strength sigmoid(beta))
    output = out_proj(norm(mixed) sigmoid(gate_up(gate_down(hidden states))))

megatron-core has no such layer. Parameters have the names and shards of `GatedDeltaNet` where both have them. Tensor-parallel
ranks divide the heads, as do context-parallel ranks between the projections; each rank has the projections to the latents, which
are as wide as a head, whole.
"""

from typing import Any

import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor
from torch.nn.functional import softplus

from lt_shared.models.architecture import GatedDelta
from lt_train.config.settings.layers import TORCH, TRITON
from lt_train.kernels import delta_rules
from lt_train.models import recomputation
from lt_train.models.linear import Linears, Outputs, replicated_linear
from lt_train.models.mixers.convolution import Convolution, sharded_parameter, split_rows
from lt_train.models.mixers.core_attention import document_numbers
from lt_train.models.mixers.gated_delta import GatedNorm
from lt_train.models.norms import compiled
from lt_train.ops.gated_delta_rule import gated_delta_rule
from lt_train.parallel.head_exchange import heads_of_all_tokens, local_rows, tokens_of_all_heads


class KimiDeltaAttention(MegatronModule):  # type: ignore[misc]
    """Mix hidden states [s, b, h] of whole samples; needs no positions.

    `kernels` and the backward pass are as those of `GatedDeltaNet`.
    """

    def __init__(self, config: TransformerConfig, sizes: GatedDelta, linears: Linears, kernels: str = TORCH):
        super().__init__(config=config)
        self.sizes, self.ranks, self.kernels = sizes, config.tensor_model_parallel_size, kernels
        hidden, size, width = config.hidden_size, sizes.linear_key_head_dim, sizes.key_size
        # The ranks that divide the heads between the projections.
        self.shares = self.ranks * config.context_parallel_size
        heads = sizes.linear_num_value_heads // self.ranks
        self.width_parts, self.head_parts = [(heads * size, heads)], [(heads, heads)]
        self.convolved_parts = 3 * self.width_parts
        self.in_proj = linears.column(hidden, sizes.projected_size, bias=False)
        self.conv1d = Convolution(config, sizes.convolved_size, sizes.linear_conv_kernel_dim, has_silu=True)
        self.decay_down = replicated_linear(config, hidden, size)
        self.decay_up = linears.column(size, width, bias=False)
        self.gate_down = replicated_linear(config, hidden, size)
        self.gate_up = linears.column(size, width, bias=False)
        self.dt_bias = sharded_parameter(config, width)
        self.A_log = sharded_parameter(config, sizes.linear_num_value_heads)
        self.gated_norm = GatedNorm(config, size, sizes.output_norm_epsilon or config.layernorm_epsilon, torch.sigmoid)
        self.out_proj = linears.row(width, hidden, bias=False)

    def forward(self, hidden_states: Tensor, documents: Tensor | None, angles: Tensor | None) -> Outputs:
        """Return [s, b, h], and no bias. `documents` [b, n + 1] are document borders; `angles` is unused."""
        projected, _ = self.in_proj(hidden_states)
        projected = heads_of_all_tokens(projected, [*self.convolved_parts, *self.head_parts])
        decays, _ = self.decay_up(self.decay_down(hidden_states))
        gates, _ = self.gate_up(self.gate_down(hidden_states))
        decays, gates = (heads_of_all_tokens(channels, self.width_parts) for channels in (decays, gates))
        if self.kernels in (TRITON, TORCH):
            numbers = None if documents is None else document_numbers(documents, len(projected))
            is_recomputed = self.training and torch.is_grad_enabled()
            mixed = recomputation.compute(self._mix, is_recomputed, projected, decays, gates, numbers)
        else:
            mixed = self._mix_by_kernels(projected, decays, gates, documents)
        return self.out_proj(tokens_of_all_heads(mixed))  # type: ignore[no-any-return]

    def _mix(self, projected: Tensor, decays: Tensor, gates: Tensor, numbers: Tensor | None) -> Tensor:
        """Return [s, b, heads x d] for the `projected` channels [s, b, c], `decays` and `gates` [s, b, heads x d].

        `numbers` [b, s] are the tokens' document numbers.
        """
        size, width = self.sizes.linear_key_head_dim, self.sizes.key_size // self.shares
        mixed, betas = torch.split(projected, [3 * width, self.sizes.linear_num_value_heads // self.shares], dim=-1)
        mixed = self.conv1d(mixed, None if numbers is None else numbers.t(), self.convolved_parts)
        query, key, value = mixed.transpose(0, 1).unflatten(-1, (3, -1, size)).unbind(2)
        strength, log_decay = compiled(_gates)(betas.transpose(0, 1), decays.transpose(0, 1), *self._rates())
        outputs = gated_delta_rule(query, key, value, log_decay, strength, numbers, by_triton=self.kernels == TRITON)
        return self.gated_norm(outputs.transpose(0, 1), gates)  # type: ignore[no-any-return]

    def _mix_by_kernels(self, projected: Tensor, decays: Tensor, gates: Tensor, documents: Tensor | None) -> Tensor:
        """Return as `_mix`; `documents` [b, n + 1] are document borders."""
        size, width = self.sizes.linear_key_head_dim, self.sizes.key_size // self.shares
        borders = None if documents is None else delta_rules.borders_of_all_samples(documents, len(projected))
        parts = torch.split(projected, [width, width, width, self.sizes.linear_num_value_heads // self.shares], dim=-1)
        *channels, betas = (delta_rules.in_samples(part, borders) for part in parts)
        weights = local_rows(self.conv1d.weight, self.convolved_parts)
        query, key, value = (
            delta_rules.convolve(part, weight, borders)
            for part, weight in zip(channels, torch.split(weights, width), strict=True)
        )
        rates = delta_rules.in_samples(decays, borders)
        query, key, value, rates = (part.reshape(*part.shape[:2], -1, size) for part in (query, key, value, rates))
        outputs = delta_rules.kimi_delta(query, key, value, rates, betas, *self._rates(), borders)
        outputs = outputs.reshape(projected.shape[1], len(projected), -1, size)
        return self.gated_norm(outputs.transpose(0, 1), gates)  # type: ignore[no-any-return]

    def _rates(self) -> tuple[Tensor, Tensor]:
        """Return A_log and dt_bias of this rank's heads."""
        return local_rows(self.A_log, self.head_parts), local_rows(self.dt_bias, self.width_parts)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the sharded state: a tensor per part of the projection and the convolution, A_log in transformers' shape."""
        state: dict[str, Any] = super().sharded_state_dict(prefix, sharded_offsets, metadata)
        vectors = {"dt_bias": self.dt_bias, "A_log": self.A_log}
        state |= make_sharded_tensors_for_checkpoint(vectors, prefix, dict.fromkeys(vectors, 0), sharded_offsets)
        state[f"{prefix}A_log"] = _for_all_channels(state[f"{prefix}A_log"])
        convolved = dict.fromkeys(("query", "key", "value"), self.sizes.key_size)
        projected = convolved | {"beta": self.sizes.linear_num_value_heads}
        for name, parts in {"in_proj.weight": projected, "conv1d.weight": convolved}.items():
            local_rows = {part: size // self.ranks for part, size in parts.items()}
            state[prefix + name] = split_rows(state[prefix + name], local_rows)
        return state


def _gates(betas: Tensor, decays: Tensor, log_rates: Tensor, biases: Tensor) -> tuple[Tensor, Tensor]:
    """Return float32 strengths [b, s, heads] and logarithms of the decays [b, s, heads, d]."""
    rates = softplus(decays.float() + biases.float()).reshape(*betas.shape, -1)
    return betas.float().sigmoid(), -log_rates.float().exp().unsqueeze(-1) * rates


def _for_all_channels(whole: ShardedTensor) -> ShardedTensorFactory:
    """Store this rank's part of a vector of all heads as [1, 1, heads, 1].

    The parameter has one axis, because optimizers decay the weights of tensors with more.
    """
    rank, ranks = whole.global_offset[-1] // whole.local_shape[0], whole.axis_fragmentations[-1]

    @torch.no_grad()
    def build(key: str, tensor: Tensor, replica_id: Any, flattened_range: slice | None) -> ShardedTensor:
        assert flattened_range is None, "a flat shard has no heads"
        return ShardedTensor.from_rank_offsets(key, tensor.view(1, 1, -1, 1), (2, rank, ranks), replica_id=replica_id)

    def merge(stored: Tensor) -> Tensor:
        return stored.flatten()

    return ShardedTensorFactory(whole.key, whole.data, build, merge, whole.replica_id)
