"""Experts in groups: a token's experts are chosen from the best groups."""

from typing import Any

from lt_shared.console import BadConfig


def check(model: Any, experts: int) -> None:
    """Raises BadConfig for groups of `experts` that do not exist or that nothing can be chosen from.

    Removes a number of scores per group that is Megatron's.
    """
    groups, chosen, topk = model.moe_router_num_groups, model.moe_router_group_topk, model.moe_router_topk
    if (groups is None) != (chosen is None):
        raise BadConfig("groups of experts need both, their number and how many of them are chosen")
    if not groups or not chosen:
        if model.moe_router_group_score_topk:
            raise BadConfig("moe_router_group_score_topk for a model whose experts are in no groups")
        return
    size = experts // groups
    if experts % groups or chosen > groups or topk > chosen * size:
        raise BadConfig(f"{topk} of {experts} experts cannot be chosen from {chosen} of {groups} groups")
    if not 1 <= model.group_score_topk <= size:
        raise BadConfig(f"the score of a group of {size} experts cannot be the sum of its best {model.group_score_topk}")
    if model.moe_router_group_score_topk == topk // chosen:
        object.__setattr__(model, "moe_router_group_score_topk", None)
