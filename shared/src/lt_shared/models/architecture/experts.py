"""Checks of a model's experts, their router, and groups of experts."""

from typing import Any

from lt_shared.console import BadConfig

_OF_EXPERTS = (
    *("moe_ffn_hidden_size", "moe_first_dense_layers", "moe_shared_expert_intermediate_size", "moe_router_pre_softmax"),
    *("moe_router_enable_expert_bias", "moe_router_num_groups", "moe_shared_expert_gate"),
)


def check(model: Any) -> None:
    """Raises BadConfig for experts that cannot be, and for settings of experts in a model without them.

    Sets the fields that mean the same in several spellings to the shortest one.
    """
    if model.num_experts is None:
        expert_fields = [field for field in _OF_EXPERTS if getattr(model, field)]
        if expert_fields:
            raise BadConfig(f"{', '.join(expert_fields)} for a model without experts", "give num_experts")
        return
    if model.family != "llama":
        raise BadConfig("experts are known in the Llama style only", "use RoPE, RMSNorm, SwiGLU and no biases")
    if not 1 <= model.moe_router_topk <= model.num_experts:
        raise BadConfig(f"a token cannot go to {model.moe_router_topk} of {model.num_experts} experts")
    if model.moe_first_dense_layers >= model.num_layers:
        raise BadConfig(f"of {model.num_layers} layers, the first {model.moe_first_dense_layers} have no experts: none has")
    if model.moe_first_dense_layers == 0 or model.moe_ffn_hidden_size == model.ffn_hidden_size:
        object.__setattr__(model, "ffn_hidden_size", model.expert_size)
        object.__setattr__(model, "moe_ffn_hidden_size", None)
    if model.moe_shared_expert_gate and not model.moe_shared_expert_intermediate_size:
        raise BadConfig("a gate of the shared expert, and no shared expert", "give moe_shared_expert_intermediate_size")
    # ERNIE 4.5 chooses experts by the biased probabilities, and weighs the chosen ones by a softmax over them.
    is_softmax_over_all = model.moe_router_score_function == "softmax" and bool(
        model.moe_router_pre_softmax or model.moe_router_num_groups
    )
    if model.moe_router_enable_expert_bias and is_softmax_over_all:
        raise BadConfig(
            "biases that balance experts with a softmax over all experts, or with groups",
            "give moe_router_score_function sigmoid",
        )
    if model.moe_router_score_function == "sigmoid":
        # Megatron always normalises sigmoids over the chosen experts, whatever the setting says.
        object.__setattr__(model, "moe_router_pre_softmax", False)
    _check_groups(model, model.num_experts)


def _check_groups(model: Any, experts: int) -> None:
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
