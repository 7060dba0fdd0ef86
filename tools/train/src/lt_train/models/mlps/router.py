"""The router of a layer with experts: choose experts and probabilities for every token.

megatron-core's `TopKRouter` implements the rules: softmax or sigmoid, groups, balancing biases, the auxiliary loss. `Router`
replaces the GEMM of the logits, the choice of experts by softmax, the scores of expert groups, the choice of dropped tokens, and
the scale of the global auxiliary loss.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.mappings import reduce_from_tensor_model_parallel_region
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe.moe_utils import switch_load_balancing_loss_func
from megatron.core.transformer.moe.router import TopKRouter
from torch import Tensor
from torch.nn.functional import linear

from lt_train.config.settings.routing import BATCH, NONE, POSITION, PROBABILITIES
from lt_train.megatron.upstream import refuse_unknown
from lt_train.ops.router_gemm import router_logits

Chosen = tuple[Tensor, Tensor]


@dataclasses.dataclass
class GroupLimitedTopk:
    """Choose among the experts of the best groups. The score of a group is the sum of its best `score_topk` expert scores.

    megatron-core sums the best topk / group_topk scores of a group. That is two for DeepSeek-V3, as published, but also for
    DeepSeek-V2, which scores a group by its best expert alone (arXiv:2405.04434). This object poses as megatron-core's replay of
    recorded choices, so that megatron-core still computes probabilities, biases and losses.
    """

    score_topk: int
    # megatron-core 0.19 sets the layer number on its replay objects.
    layer_number: int | None = None

    def get_replay_topk(self, scores: Tensor, topk: int, groups: int, group_topk: int, default: Callable[..., Chosen]) -> Chosen:
        """Return scores and numbers of the chosen experts, both [tokens, topk], from `scores` [tokens, experts]."""
        of_groups = scores.view(len(scores), groups, -1)
        best = of_groups.topk(self.score_topk).values.sum(-1).topk(group_topk, sorted=False).indices
        is_left_out = best.new_ones(of_groups.shape[:2]).scatter_(1, best, 0).bool()
        chosen = of_groups.masked_fill(is_left_out.unsqueeze(-1), float("-inf")).flatten(1).topk(topk)
        return chosen.values, chosen.indices


@dataclasses.dataclass
class BiasedTopk:
    """Choose the experts with the largest sums of probability and bias (ERNIE 4.5); megatron-core biases sigmoids only.

    megatron-core calls it as `GroupLimitedTopk` and computes a softmax over the logits that this object returns.
    """

    router: "Router"
    layer_number: int | None = None

    def get_replay_topk(self, scores: Tensor, topk: int, groups: int, group_topk: int, default: Callable[..., Chosen]) -> Chosen:
        """Return logits and numbers of the chosen experts, both [tokens, topk], from the logits `scores` [tokens, experts]."""
        biased = scores.detach().float().softmax(-1) + self.router.expert_bias
        chosen = biased.topk(topk).indices
        return scores.gather(1, chosen), chosen


class Router(TopKRouter):  # type: ignore[misc]
    """megatron-core's router with faster logits and choices.

    `by_kernel`: if logits alone decide, `lt_train.kernels.router` chooses with one kernel in each direction, instead of 30
    PyTorch kernels. `group_score_topk` is the number of experts in the score of a group, None without groups. Without a
    `capacity_factor`, no token is dropped.
    """

    def __init__(
        self,
        config: TransformerConfig,
        groups: ProcessGroupCollection,
        *,
        in_bfloat16: bool,
        by_kernel: bool,
        group_score_topk: int | None,
        capacity_factor: float | None = None,
        drop_policy: str = PROBABILITIES,
    ):
        super().__init__(config=config, pg_collection=groups)
        # `routing` drops tokens itself: megatron-core's policy "position" keeps the tokens that torch.topk finds first among
        # equals, which are not the first of the sequence.
        self.capacity_factor, self.drop_policy = capacity_factor, drop_policy
        chooses_by_logits = config.moe_router_score_function == "softmax" and not config.moe_router_pre_softmax
        is_plain = config.moe_router_num_groups is None and config.moe_router_topk_scaling_factor is None
        is_plain = is_plain and not config.moe_router_enable_expert_bias
        # The kernel adds up the probabilities of all its tokens.
        is_plain = is_plain and config.moe_router_load_balancing_type in (BATCH, NONE)
        self.in_bfloat16, self.by_kernel = in_bfloat16, by_kernel and chooses_by_logits and is_plain
        choice: GroupLimitedTopk | BiasedTopk | None = GroupLimitedTopk(group_score_topk) if group_score_topk else None
        if config.moe_router_enable_expert_bias and config.moe_router_score_function == "softmax":
            choice = BiasedTopk(self)
        if choice is not None:
            self.router_replay = choice

    def gating(self, tokens: Tensor) -> Tensor:
        """Return float32 logits [..., experts] for `tokens` [..., h].

        `in_bfloat16`, a GEMM multiplies bfloat16 inputs into a float32 result; otherwise the inputs are cast to float32.
        """
        if self.in_bfloat16:
            logits = router_logits(tokens.reshape(-1, tokens.shape[-1]), self.weight).view(*tokens.shape[:-1], -1)
            return logits if self.bias is None else logits + self.bias.float()
        return linear(tokens.float(), self.weight.float(), None if self.bias is None else self.bias.float())

    def _apply(self, *arguments: Any, **options: Any) -> "Router":
        """Cast the weights but keep the buffers in float32.

        In bfloat16, a balancing bias of 1 would lose steps of 0.001, and a token count would stop at 256. megatron-core restores
        only the bias.
        """
        super()._apply(*arguments, **options)
        for name, buffer in self.named_buffers():
            setattr(self, name, buffer.float())
        return self

    def routing(self, logits: Tensor, *unknown: Any, **options: Any) -> tuple[Tensor, Tensor]:
        """Return probabilities and the routing map, both [s b, experts], for `logits` [s, b, experts].

        The auxiliary loss is attached to the probabilities. Dropped tokens still count in it, and in the balancing biases.
        """
        if self.by_kernel:
            refuse_unknown("TopKRouter.routing", unknown, options)
            probabilities, routing_map = self._choose_by_kernel(logits)
        else:
            probabilities, routing_map = super().routing(logits, *unknown, **options)
        if self.capacity_factor is None:
            return probabilities, routing_map
        return limit_experts(probabilities, routing_map, self.topk, self.capacity_factor, self.drop_policy)

    def _choose_by_kernel(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        from lt_train.kernels.router import choose_experts

        logits = self.apply_z_loss(logits.view(-1, logits.shape[-1]))
        probabilities, routing_map, sums, counts = choose_experts(logits, self.topk)
        coefficient, group = self.get_aux_loss_coeff(BATCH), self.tp_cp_group
        if not (coefficient and self.training and torch.is_grad_enabled()):
            return probabilities, routing_map
        loss = switch_load_balancing_loss_func(
            probs=sums.unsqueeze(0),
            tokens_per_expert=reduce_from_tensor_model_parallel_region(counts, group),
            total_num_tokens=len(probabilities) * group.size(),
            topk=self.topk,
            num_experts=logits.shape[-1],
            moe_aux_loss_coeff=coefficient,
        )
        attached: Tensor = self.attach_and_log_load_balancing_loss(
            probabilities, coefficient, loss, "load_balancing_loss", group, valid_token_count=len(probabilities)
        )
        return attached, routing_map

    def attach_and_log_load_balancing_loss(
        self, activation: Tensor, coefficient: float, loss: Tensor, name: str, group: Any, **options: Any
    ) -> Tensor:
        """Attach an auxiliary loss to `activation`.

        megatron-core divides the global loss by the tokens of all data-parallel ranks, and DDP divides its gradient by the number
        of ranks once more, so the loss would weigh less with every further rank. The other losses do not depend on the number.
        """
        if name == "global_load_balancing_loss":
            loss = loss * (self.tp_dp_cp_group.size() // self.tp_cp_group.size())
        attached: Tensor = super().attach_and_log_load_balancing_loss(activation, coefficient, loss, name, group, **options)
        return attached


def limit_experts(probabilities: Tensor, routing_map: Tensor, topk: int, factor: float, policy: str) -> tuple[Tensor, Tensor]:
    """Limit every expert to `factor` times its even share of the tokens; drop the least probable tokens, or the last ones.

    `probabilities` and `routing_map` are [tokens, experts], before and after. The probability of a dropped token is 0; the others
    stay, so the layer's output for the token is smaller.
    """
    tokens, experts = routing_map.shape
    capacity = math.ceil(tokens * topk / experts * factor)
    if capacity >= tokens:
        return probabilities, routing_map
    if policy == POSITION:
        routing_map = routing_map & (routing_map.cumsum(0) <= capacity)
    else:
        best = probabilities.detach().topk(capacity, dim=0, sorted=False).indices
        routing_map = routing_map & torch.zeros_like(routing_map).scatter(0, best, True)
    return probabilities * routing_map, routing_map
