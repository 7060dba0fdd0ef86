"""The router of a layer with experts: which experts compute a token, and how much each counts.

megatron-core's `TopKRouter` has the rules (softmax or sigmoid, groups, balancing biases, the auxiliary loss). Three parts are
computed otherwise:

- Logits: of bfloat16 on a GPU by a GEMM with a float32 result (`lt_train.ops.router_gemm`), elsewhere in float32.
- The choice by a softmax over the chosen experts: by a kernel each way, instead of 30 kernels of PyTorch.
- The score of a group of experts: megatron-core sums the best topk / group_topk scores of a group, two for DeepSeek-V3, as its
  authors do, but two for DeepSeek-V2 as well, which scores a group by its best expert alone (arXiv:2405.04434). Experts are
  chosen where megatron-core asks for a record of earlier choices, which leaves probabilities, biases and losses to it.
"""

import dataclasses
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

from lt_train.megatron.upstream import refuse_unknown
from lt_train.ops.router_gemm import router_logits

Chosen = tuple[Tensor, Tensor]


@dataclasses.dataclass
class GroupLimitedTopk:
    """Chooses among the experts of the best groups. `score_topk` experts make up a group's score."""

    score_topk: int
    # megatron-core 0.19 numbers what it finds in this place.
    layer_number: int | None = None

    def get_replay_topk(self, scores: Tensor, topk: int, groups: int, group_topk: int, default: Callable[..., Chosen]) -> Chosen:
        """The scores of the chosen experts and their numbers, both [tokens, topk], from `scores` [tokens, experts]."""
        of_groups = scores.view(len(scores), groups, -1)
        best = of_groups.topk(self.score_topk).values.sum(-1).topk(group_topk, sorted=False).indices
        is_left_out = best.new_ones(of_groups.shape[:2]).scatter_(1, best, 0).bool()
        chosen = of_groups.masked_fill(is_left_out.unsqueeze(-1), float("-inf")).flatten(1).topk(topk)
        return chosen.values, chosen.indices


class Router(TopKRouter):  # type: ignore[misc]
    """`by_kernel`: where experts are chosen by logits alone, `lt_train.kernels.router` chooses them. The score of a group is the
    sum of its best `group_score_topk` experts' scores; None without groups."""

    def __init__(
        self,
        config: TransformerConfig,
        groups: ProcessGroupCollection,
        *,
        in_bfloat16: bool,
        by_kernel: bool,
        group_score_topk: int | None,
    ):
        super().__init__(config=config, pg_collection=groups)
        chooses_by_logits = config.moe_router_score_function == "softmax" and not config.moe_router_pre_softmax
        is_plain = config.moe_router_num_groups is None and config.moe_router_topk_scaling_factor is None
        self.in_bfloat16, self.by_kernel = in_bfloat16, by_kernel and chooses_by_logits and is_plain
        if group_score_topk:
            self.router_replay = GroupLimitedTopk(group_score_topk)

    def gating(self, tokens: Tensor) -> Tensor:
        """Logits, float32 [..., experts], of `tokens` [..., h]."""
        if self.in_bfloat16:
            logits = router_logits(tokens.reshape(-1, tokens.shape[-1]), self.weight).view(*tokens.shape[:-1], -1)
            return logits if self.bias is None else logits + self.bias.float()
        return linear(tokens.float(), self.weight.float(), None if self.bias is None else self.bias.float())

    def _apply(self, *arguments: Any, **options: Any) -> "Router":
        """Leave buffers in float32, whatever the weights are cast to: in bfloat16 a balancing bias of 1 loses steps of 0.001,
        and a count of tokens ends at 256. megatron-core brings only the bias back."""
        super()._apply(*arguments, **options)
        for name, buffer in self.named_buffers():
            setattr(self, name, buffer.float())
        return self

    def routing(self, logits: Tensor, *unknown: Any, **options: Any) -> tuple[Tensor, Tensor]:
        """Of `logits` [s, b, experts] probabilities, with the auxiliary loss attached, and which experts: [s b, experts] both."""
        if not self.by_kernel:
            return super().routing(logits, *unknown, **options)  # type: ignore[no-any-return]
        from lt_train.kernels.router import choose_experts

        refuse_unknown("TopKRouter.routing", unknown, options)
        probabilities, routing_map, sums, counts = choose_experts(logits.view(-1, logits.shape[-1]), self.topk)
        coefficient, group = self.get_aux_loss_coeff("aux_loss"), self.tp_cp_group
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
