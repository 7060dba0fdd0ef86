"""Experts of a token from its best groups only, each scored by as many of its experts as the model's authors chose.

megatron-core sums the best topk / group_topk scores of a group: two for DeepSeek-V3, as its authors do, but two for DeepSeek-V2
as well, which scores a group by its best expert alone (arXiv:2405.04434). What decides the experts here is put in where
megatron-core asks for a record of earlier decisions, which leaves probabilities, biases and losses to it.
"""

import dataclasses
from collections.abc import Callable

from megatron.core.models.gpt import GPTModel
from torch import Tensor

from lt_train.models.grouped_experts import expert_layers

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


def score_groups(model: GPTModel, score_topk: int) -> None:
    """Let the routers of `model` score a group by the sum of its best `score_topk` experts."""
    for layer in expert_layers(model):
        layer.router.router_replay = GroupLimitedTopk(score_topk)
