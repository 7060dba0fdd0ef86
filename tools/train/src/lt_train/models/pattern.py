"""Choose mixer, MLP and kernels for every block in a model.

A new kind of mixer or MLP is a module in `mixers/` or `mlps/` and a line in `Pattern._mixer` or `Pattern._mlp`.
"""

import dataclasses
from collections.abc import Callable
from functools import cached_property
from typing import Any

from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.transformer_block import get_num_layers_to_build
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

from lt_shared.models.architecture import Architecture, sizes
from lt_train.config.kernels import FLASH_ATTENTION_4, Kernels, is_plain_rms_norm
from lt_train.config.settings.layers import GEMM_EPILOGUE, TORCH, TRITON
from lt_train.config.settings.routing import Routing
from lt_train.models.block import (
    NORM_OF_MLP,
    NORMS_OF_MIXERS,
    OTHER_NAMES,
    Block,
    Blocks,
    FusedBlock,
    ParallelBlock,
)
from lt_train.models.decoder import Stage
from lt_train.models.linear import Linears
from lt_train.models.mixers import latent_attention, rope
from lt_train.models.mixers.attention import Attention
from lt_train.models.mixers.core_attention import CausalAttention
from lt_train.models.mixers.flash_attention import FlashAttention
from lt_train.models.mixers.gated_delta import GatedDeltaNet
from lt_train.models.mixers.kimi_delta import KimiDeltaAttention
from lt_train.models.mixers.latent_attention import LatentAttention
from lt_train.models.mixers.mamba import MambaMixer
from lt_train.models.mixers.mamba_and_attention import MambaAndAttention
from lt_train.models.mixers.short_convolution import GatedConvolution
from lt_train.models.mixers.sparse_attention import LatentSparseAttention
from lt_train.models.mlps.grouped_experts import GroupedExperts
from lt_train.models.mlps.mlp import (
    MLP,
    Activation,
    GatedGemmMLP,
    GatedSharedExperts,
    scaled_swiglu,
    swiglu_kernel,
    torch_activation,
)
from lt_train.models.mlps.moe import DispatchingMoE, ExchangingMoE, LocalMoE, MoE
from lt_train.models.mlps.router import Router
from lt_train.models.mlps.sequential_experts import sequential_experts
from lt_train.models.mlps.xielu import XIELU
from lt_train.models.norms import last_norm, norm, summing_norm
from lt_train.ops.expert_mlp import Operations
from lt_train.ops.row_exchange import Exchange


@dataclasses.dataclass(frozen=True)
class ExpertKernels:
    """The kernels of experts, and the settings of their router.

    If `operations` is None, experts run one after another. `exchanges`: ranks exchange whole tokens.
    """

    operations: Operations | None
    exchanges: bool
    routes_in_bfloat16: bool
    routes_by_kernel: bool
    routing: Routing = dataclasses.field(default_factory=Routing)


@dataclasses.dataclass(frozen=True)
class Pattern:
    """The settings that a model's blocks share, and the choice of modules for every block.

    `linears` builds the linear layers. `angles` are the RoPE angles, None without RoPE; `local_angles` are the angles of layers
    with a window, if these layers have a separate base (Gemma 3, OLMo 3). `passes_tensors`: every block returns one tensor, as
    recomputation requires.
    """

    config: TransformerConfig
    architecture: Architecture
    kernels: Kernels
    experts: ExpertKernels
    linears: Linears
    exchange: Exchange
    angles: rope.Angles | None
    local_angles: rope.Angles | None
    by_triton: bool
    passes_tensors: bool

    def blocks(self, stage: Stage) -> Blocks:
        """Build the blocks of a pipeline stage."""
        first = get_transformer_layer_offset(self.config, stage.number) + 1
        count = get_num_layers_to_build(self.config, stage.number)
        numbers = range(first, first + count)
        blocks = [
            self._block(number, adds=self.passes_tensors or (number == numbers[-1] and not stage.is_last)) for number in numbers
        ]
        last = self._last_norm() if stage.is_last else None
        return Blocks(self.config, blocks, last, stage.is_first, has_one_kind=self.architecture.has_stacked_layers)

    def prediction_block(self, number: int, linears: Linears) -> Block:
        """Build block `number` for a prediction layer. Numbers continue after the model's last block.

        The block shares no residual stream with other blocks, and uses torch's norms, SwiGLU and RoPE.
        """
        plain = dataclasses.replace(self.kernels, norm="torch", swiglu="torch", rope="torch", recomputes_swiglu=False)
        architecture = dataclasses.replace(self.architecture, residual_multiplier=1.0)
        return dataclasses.replace(self, kernels=plain, architecture=architecture, linears=linears)._block(number, adds=True)

    def _block(self, number: int, adds: bool) -> Block:
        parts = self.config, number, self._mixer(number), self._mlp(number), self._norms(number), self._entries(number)
        multiplier = self.architecture.residual_multiplier
        if self.architecture.parallel_layers:
            return ParallelBlock(*parts, multiplier)
        return FusedBlock(*parts, multiplier, adds=adds) if self._sums_by_kernel else Block(*parts, multiplier)

    @property
    def _sums_by_kernel(self) -> bool:
        return self.kernels.norm == TRITON

    def _norms(self, number: int) -> tuple[Any, Any]:
        if self.architecture.places_norms(number - 1) == "post":
            return IdentityOp(), IdentityOp()
        make = summing_norm if self._sums_by_kernel else norm
        has_second = self.architecture.has_mlp(number - 1) and not self.architecture.parallel_layers
        has_first = self.architecture.mixer(number - 1) != sizes.NO_MIXER
        return self._norm(make) if has_first else IdentityOp(), self._norm(make) if has_second else IdentityOp()

    def _last_norm(self) -> Any:
        return self._norm(last_norm if self.by_triton and is_plain_rms_norm(self.architecture) else norm)

    def _norm(self, make: Callable[..., Any]) -> Any:
        parameters = self.architecture.layernorm_parameters
        options = {} if parameters == "weight_and_bias" else {"parameters": parameters}
        return make(self.config, self.config.hidden_size, self.config.layernorm_epsilon, **options)

    def _entries(self, number: int) -> dict[str, str]:
        """Return the checkpoint names of norms and mixers that differ from their module names.

        In layers without latent attention, megatron-core stores a norm with the linear layer that follows it.
        """
        mixer, has_experts = self.architecture.layer_kind(number - 1)
        if mixer not in (*NORMS_OF_MIXERS, sizes.NO_MIXER):
            return {}
        entries = [*([NORMS_OF_MIXERS[mixer]] if mixer in NORMS_OF_MIXERS else []), *OTHER_NAMES.get(mixer, ())]
        return dict(entries + ([] if has_experts else [NORM_OF_MLP]))

    def _mixer(self, number: int) -> Any:
        match self.architecture.mixer(number - 1):
            case sizes.ATTENTION:
                return self._attention(number)
            case sizes.LATENT_ATTENTION:
                return self._latent_attention(number)
            case sizes.SPARSE_ATTENTION:
                return LatentSparseAttention(self.config, self.architecture, self.linears)
            case sizes.GATED_DELTA:
                assert self.architecture.gated_delta is not None
                return GatedDeltaNet(self.config, self.architecture.gated_delta, self.linears, self.kernels.delta or TORCH)
            case sizes.KIMI_DELTA:
                assert self.architecture.gated_delta is not None
                return KimiDeltaAttention(self.config, self.architecture.gated_delta, self.linears, self.kernels.delta or TORCH)
            case sizes.SHORT_CONVOLUTION:
                assert self.architecture.short_convolution is not None
                return GatedConvolution(self.config, self.architecture.short_convolution, self.linears)
            case sizes.MAMBA:
                assert self.architecture.mamba is not None
                return MambaMixer(self.config, self.architecture.mamba, self.linears)
            case sizes.MAMBA_AND_ATTENTION:
                assert self.architecture.mamba is not None and self.architecture.side_by_side is not None
                factors = self.architecture.side_by_side
                mamba = MambaMixer(self.config, self.architecture.mamba, self.linears, factors)
                return MambaAndAttention(self.config, mamba, self._attention(number), factors)
            case sizes.NO_MIXER:
                return IdentityOp()
            case kind:
                raise AssertionError(f"layer {number} has the mixer {kind}, which has no module")

    def _attention(self, number: int) -> Attention:
        window = self.architecture.window(number - 1)
        angles, rotates = self.local_angles if window is not None else None, self.architecture.rotates(number - 1)
        # The scale of the scores contains the factor of YaRN, which layers without the model's angles do not have.
        is_unscaled = angles is not None or not rotates
        scale = self.architecture.softmax_scale if is_unscaled else rope.score_scale(self.architecture)
        if self.architecture.side_by_side:
            scale = (scale or self.architecture.kv_channels**-0.5) * self.architecture.side_by_side.attention_keys
        core, by_kernel = self._core_attention(number, scale), self.kernels.rope == TRITON
        return Attention(self.config, self.architecture, self.linears, core, angles, rotates, by_kernel)

    def _latent_attention(self, number: int) -> LatentAttention:
        core = self._core_attention(number, latent_attention.score_scale(self.architecture))
        return LatentAttention(self.config, self.architecture, self.linears, core)

    def _core_attention(self, number: int, scale: float | None) -> Any:
        core = FlashAttention if self.kernels.attention == FLASH_ATTENTION_4 else CausalAttention
        return core(self.config, number, softmax_scale=scale, softcap=self.architecture.attn_logit_softcapping)

    def _mlp(self, number: int) -> MLP | MoE | IdentityOp:
        if not self.architecture.has_mlp(number - 1):
            return IdentityOp()
        if self.architecture.has_experts(number - 1):
            return self._moe(number)
        width, has_norm = self.config.ffn_hidden_size, self.architecture.places_norms(number - 1) != "pre"
        if self.kernels.swiglu == GEMM_EPILOGUE:
            return GatedGemmMLP(self.config, self.linears, width, self.exchange, not self.kernels.recomputes_swiglu)
        return MLP(self.config, self.linears, width, self._activation(), has_norm)

    def _activation(self) -> Activation | None:
        if self.architecture.activation == "xielu":
            return XIELU(self.config)
        factors = self.architecture.side_by_side
        if factors is not None and (factors.mlp_gates, factors.mlp_output) != (1, 1):
            return scaled_swiglu(factors.mlp_gates, factors.mlp_output)
        if self.kernels.fp8_cast == TRITON and self.kernels.recomputes_swiglu:
            return None
        return swiglu_kernel if self.kernels.swiglu == TRITON else torch_activation(self.config)

    def _moe(self, number: int) -> MoE:
        config, groups = self.config, self._groups
        router = Router(
            config,
            groups,
            in_bfloat16=self.experts.routes_in_bfloat16,
            by_kernel=self.experts.routes_by_kernel,
            group_score_topk=self.architecture.moe_router_group_score_topk,
            capacity_factor=self.experts.routing.capacity_factor,
            drop_policy=self.experts.routing.drop_policy,
        )
        ranks, operations = groups.ep.size(), self.experts.operations
        count = config.num_moe_experts // ranks
        experts: Any
        if operations is None:
            experts = sequential_experts(config, count, groups)
        else:
            experts = GroupedExperts(config, count, groups, operations)
        width = config.moe_shared_expert_intermediate_size
        shared_kind = GatedSharedExperts if config.moe_shared_expert_gate else MLP
        shared = None if width is None else shared_kind(config, self.linears, width, torch_activation(config))
        kind = DispatchingMoE
        if operations is not None:
            kind = LocalMoE if ranks == 1 else ExchangingMoE if self.experts.exchanges else DispatchingMoE
        return kind(config, number, groups, router, experts, shared)

    @cached_property
    def _groups(self) -> ProcessGroupCollection:
        return ProcessGroupCollection.use_mpu_process_groups()
