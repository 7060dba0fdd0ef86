"""The experts of a layer, each whole on its rank: one tensor for a matrix of all of them, multiplied by grouped GEMMs.

megatron-core has this with TransformerEngine only. Its `SequentialMLP` computes one expert after another: for the 128 experts of
a layer of Qwen3-30B-A3B some 1,500 kernels, each too small to fill a GPU. Where a rank has all experts, megatron-core's
dispatcher is replaced as well: rows are gathered and summed as part of the experts' computation (`lt_train.ops.expert_mlp`), and
no count of tokens is copied to the host. With the experts on few ranks `lt_train.models.expert_exchange` does so with the tokens
of all of them; on many ranks megatron-core's dispatcher exchanges rows and waits for counts.

Checkpoints are those of `SequentialMLP`: a tensor [layers, experts, ...] in which each expert is an entry of its own.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel.mappings import (
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
)
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.moe.moe_utils import switch_load_balancing_loss_func
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.utils import get_pg_rank, get_pg_size
from torch import Tensor

from lt_train.models.expert_exchange import exchange_whole_tokens
from lt_train.ops import expert_rows
from lt_train.ops.expert_mlp import Arrived, Operations, Routing, RowOperations, RowSource, Weights, expert_mlp
from lt_train.ops.grouped_gemm import TorchGroupedGemms
from lt_train.ops.router_gemm import router_logits
from lt_train.parallel.ddp import wait_for_weights


class GroupedLinear(torch.nn.Module):
    """A `weight` [experts, outputs, inputs], and perhaps a `bias` [experts, outputs]. `GroupedExperts` multiplies by it."""

    def __init__(self, experts: int, outputs: int, inputs: int, config: TransformerConfig):
        super().__init__()
        self.weight = _parameter((experts, outputs, inputs), config)
        self.weight.accumulates_in_gemm = config.gradient_accumulation_fusion
        self.bias = _parameter((experts, outputs), config) if config.add_bias_linear else None


def _parameter(shape: tuple[int, ...], config: TransformerConfig) -> Any:
    device = "meta" if config.init_model_with_meta_device else torch.cuda.current_device()
    parameter: Any = torch.nn.Parameter(torch.empty(shape, dtype=config.params_dtype, device=device))
    # Whole on each tensor-parallel rank, of which each has the gradient of its own tokens: they are summed over all ranks that
    # have the same expert, and once.
    parameter.tensor_model_parallel, parameter.sequence_parallel = True, False
    return parameter


class GroupedExperts(torch.nn.Module):
    """In place of megatron-core's `SequentialMLP`, for experts with SwiGLU or with gpt-oss's clamped one and biases."""

    def __init__(self, num_local_experts: int, config: TransformerConfig, pg_collection: Any = None, name: str | None = None):
        super().__init__()
        self.experts, self.ep_group, self.dp_group = num_local_experts, pg_collection.ep, pg_collection.expt_dp
        self.linear_fc1 = GroupedLinear(num_local_experts, 2 * config.moe_ffn_hidden_size, config.hidden_size, config)
        self.linear_fc2 = GroupedLinear(num_local_experts, config.hidden_size, config.moe_ffn_hidden_size, config)
        self.operations = Operations(TorchGroupedGemms(), expert_rows)

    def forward(self, rows: Tensor, routing: RowSource | Tensor, probabilities: Tensor) -> tuple[Tensor, None]:
        """Tokens [t, h] of a `RowSource`; or rows [m, h] sorted by expert, how many each expert has, and probabilities [m].

        The bias of the second matrix is added where this rank has all of a token's rows.
        """
        wait_for_weights(self.linear_fc1, self.linear_fc2)
        chosen = Arrived.of_counts(routing, rows) if isinstance(routing, Tensor) else routing
        bias = self.linear_fc2.bias if isinstance(chosen, Routing | Arrived) else None
        weights = Weights(self.linear_fc1.weight, self.linear_fc2.weight, self.linear_fc1.bias, bias)
        return expert_mlp(rows, probabilities, chosen, weights, self.operations), None

    def with_bias(self, output: Tensor, probabilities: Tensor) -> Tensor:
        """`output` [t, h] with the second matrix's biases of the experts of all ranks, by `probabilities` [t, experts]."""
        if self.linear_fc2.bias is None:
            return output
        bias: Tensor = gather_from_sequence_parallel_region(self.linear_fc2.bias.float(), group=self.ep_group)
        return (output + probabilities.float() @ bias).to(output.dtype)

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> dict[str, Any]:
        first, total = get_pg_rank(self.ep_group) * self.experts, get_pg_size(self.ep_group) * self.experts
        build = partial(_entries, sharded_offsets, first, total)
        replica = (0, 0, get_pg_rank(self.dp_group))
        return {
            f"{prefix}{name}": ShardedTensorFactory(f"{prefix}experts.{name}", parameter, build, torch.stack, replica)
            for name, parameter in self.named_parameters()
        }


def _entries(
    layer: tuple[Any, ...], first: int, total: int, key: str, parameter: Tensor, replica: Any, flattened_range: Any = None
) -> list[ShardedTensor]:
    """An entry for each expert of `parameter`, the first of which is number `first` of `total`."""
    return [
        ShardedTensor.from_rank_offsets(
            key,
            expert,
            *layer,
            (len(layer), first + number, total),
            replica_id=replica,
            prepend_axis_num=len(layer) + 1,
        )
        for number, expert in enumerate(parameter)
    ]


class LocalDispatcher:
    """In place of megatron-core's dispatcher, where each rank has all experts: tokens stay in their order, and a `Routing` says
    which experts compute them."""

    def __init__(self, config: TransformerConfig, operations: RowOperations):
        self.experts_per_token, self.operations = config.moe_router_topk, operations
        self.shape = torch.Size()
        self.routing: Routing | None = None

    def dispatch_preprocess(self, tokens: Tensor, routing_map: Tensor, probabilities: Tensor) -> tuple[Tensor, Tensor]:
        self.shape = tokens.shape
        self.routing = Routing.of_map(routing_map.view(-1, routing_map.shape[-1]), self.experts_per_token, self.operations)
        return tokens.reshape(-1, tokens.shape[-1]), probabilities

    def token_dispatch(self, tokens: Tensor, probabilities: Tensor) -> tuple[Tensor, Tensor]:
        return tokens, probabilities

    def dispatch_postprocess(self, tokens: Tensor, probabilities: Tensor) -> tuple[Tensor, Routing | None, Tensor]:
        routing, self.routing = self.routing, None
        return tokens, routing, probabilities

    def get_expert_zero_copy_buffers(self) -> tuple[None, None]:
        return None, None

    def combine_preprocess(self, outputs: Tensor) -> Tensor:
        return outputs

    def token_combine(self, outputs: Tensor) -> Tensor:
        return outputs

    def combine_postprocess(self, outputs: Tensor) -> Tensor:
        return outputs.view(self.shape)


def use_grouped_experts(model: GPTModel, operations: Operations, exchanges: bool) -> None:
    """Let the grouped experts of `model` use `operations`, and get tokens without megatron-core's dispatcher where each rank has
    all experts, or where it `exchanges` whole tokens."""
    for layer in expert_layers(model):
        layer.experts.operations = operations
        if get_pg_size(layer.ep_group) == 1:
            layer.token_dispatcher = LocalDispatcher(layer.config, operations.rows)
        elif exchanges:
            exchange_whole_tokens(layer)


def expert_layers(model: GPTModel) -> Iterator[MoELayer]:
    return (module for module in model.modules() if isinstance(module, MoELayer) and isinstance(module.experts, GroupedExperts))


def use_bfloat16_router(model: GPTModel) -> None:
    """Let the routers of `model`, in bfloat16 on a GPU, compute their logits without casts (`lt_train.ops.router_gemm`)."""
    for layer in expert_layers(model):
        layer.router.gating = partial(_gating, layer.router)


def _gating(router: TopKRouter, tokens: Tensor) -> Tensor:
    logits = router_logits(tokens.reshape(-1, tokens.shape[-1]), router.weight).view(*tokens.shape[:-1], -1)
    return logits if router.bias is None else logits + router.bias.float()


def use_fused_router(model: GPTModel) -> None:
    """Let the routers of `model`, where they are as `lt_train.kernels.router` says, choose experts by that kernel."""
    for layer in expert_layers(model):
        config = layer.config
        chooses_by_logits = config.moe_router_score_function == "softmax" and not config.moe_router_pre_softmax
        if chooses_by_logits and config.moe_router_num_groups is None and config.moe_router_topk_scaling_factor is None:
            layer.router.routing = partial(_routing, layer.router)


def _routing(router: TopKRouter, logits: Tensor, padding_mask: None = None) -> tuple[Tensor, Tensor]:
    """Of `logits` [s, b, experts]: probabilities, with the auxiliary loss attached, and which experts, both [s b, experts]."""
    from lt_train.kernels.router import choose_experts

    probabilities, routing_map, sums, counts = choose_experts(logits.view(-1, logits.shape[-1]), router.topk)
    coefficient, group = router.get_aux_loss_coeff("aux_loss"), router.tp_cp_group
    if not (coefficient and router.training and torch.is_grad_enabled()):
        return probabilities, routing_map
    loss = switch_load_balancing_loss_func(
        probs=sums.unsqueeze(0),
        tokens_per_expert=reduce_from_tensor_model_parallel_region(counts, group),
        total_num_tokens=len(probabilities) * group.size(),
        topk=router.topk,
        num_experts=logits.shape[-1],
        moe_aux_loss_coeff=coefficient,
    )
    attached: Tensor = router.attach_and_log_load_balancing_loss(
        probabilities, coefficient, loss, "load_balancing_loss", group, valid_token_count=len(probabilities)
    )
    return attached, routing_map
