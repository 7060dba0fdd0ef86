"""An `Architecture` as Megatron-LM's command-line arguments (the names in its `args` namespace), and back.

lt-train's own flags carry the same names, its log prints them the way Megatron does, and checkpoints store them, so a run can be
described from any of the three. RoPE scaling is Megatron's `--use-rope-scaling`; only the factor is an argument there, and the
other three numbers are constants in megatron-core: where a model has others, they are kept under names that Megatron does not
read. A sliding window of n tokens is `--window-size n-1,0` there: the keys to the left and to the right of a query.
"""

import dataclasses
from typing import Any

from lt_shared.architecture import Architecture, RopeScaling
from lt_shared.console import BadConfig

_SCALING_PREFIX = "lt_rope_"
# Arguments of unsupported features, with the value that turns them off.
_ABSENT_HERE = {
    "multi_latent_attention": False,
    "qk_l2_norm": False,
    "softmax_type": "vanilla",
    "window_attn_skip_freq": None,
    "rotary_interleaved": False,
    "rotary_seq_len_interpolation_factor": None,
    "no_rope_freq": None,
    "apply_layernorm_1p": False,
    "apply_residual_connection_post_layernorm": False,
    "squared_relu": False,
    "quick_geglu": False,
    "mtp_num_layers": None,
    "moe_layer_freq": 1,
    "moe_shared_expert_intermediate_size": None,
    "moe_router_pre_softmax": False,
    "moe_router_score_function": "softmax",
    "moe_router_topk_scaling_factor": None,
    "moe_router_enable_expert_bias": False,
}


def to_arguments(architecture: Architecture) -> dict[str, Any]:
    """The arguments of `architecture`."""
    llama = architecture.family == "llama"
    scaling = architecture.rope_scaling
    return {
        "num_layers": architecture.num_layers,
        "hidden_size": architecture.hidden_size,
        "ffn_hidden_size": architecture.ffn_hidden_size,
        "num_attention_heads": architecture.num_attention_heads,
        "group_query_attention": architecture.num_query_groups != architecture.num_attention_heads,
        "num_query_groups": architecture.num_query_groups,
        "kv_channels": architecture.kv_channels,
        "vocab_size": architecture.vocab_size,
        "max_position_embeddings": architecture.max_position_embeddings,
        "position_embedding_type": "rope" if llama else "learned_absolute",
        "rotary_base": int(architecture.rotary_base),
        "use_rope_scaling": scaling is not None,
        "rope_scaling_factor": scaling.factor if scaling else 8.0,
        **({} if scaling is None or is_computable_by_megatron(scaling) else _other_numbers(scaling)),
        "normalization": "RMSNorm" if llama else "LayerNorm",
        "norm_epsilon": architecture.norm_epsilon,
        "swiglu": llama,
        "add_bias_linear": not llama,
        "untie_embeddings_and_output_weights": not architecture.tie_embeddings,
        "init_method_std": architecture.init_std,
        "rotary_percent": architecture.rotary_percent,
        "add_qkv_bias": architecture.add_qkv_bias,
        "qk_layernorm": architecture.qk_layernorm,
        "window_size": (architecture.sliding_window - 1, 0) if architecture.sliding_window else None,
        "num_experts": architecture.num_experts,
        **(_experts(architecture) if architecture.num_experts else {}),
    }


def is_computable_by_megatron(scaling: RopeScaling) -> bool:
    """Whether megatron-core can compute it: everything but the factor is a constant there."""
    return scaling == RopeScaling(scaling.factor)


def _other_numbers(scaling: RopeScaling) -> dict[str, float]:
    return {_SCALING_PREFIX + name: value for name, value in dataclasses.asdict(scaling).items() if name != "factor"}


def _scaling(arguments: dict[str, Any]) -> RopeScaling | None:
    if not arguments.get("use_rope_scaling"):
        return None
    names = (field.name for field in dataclasses.fields(RopeScaling))
    others = {name: arguments[_SCALING_PREFIX + name] for name in names if _SCALING_PREFIX + name in arguments}
    return RopeScaling(arguments.get("rope_scaling_factor", 8.0), **others)


def _experts(architecture: Architecture) -> dict[str, Any]:
    return {
        "moe_ffn_hidden_size": architecture.ffn_hidden_size,
        "moe_router_topk": architecture.moe_router_topk,
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": architecture.moe_aux_loss_coeff,
    }


def from_arguments(arguments: dict[str, Any], name: str) -> Architecture:
    """The architecture of Megatron's arguments, as parsed values. Raises BadConfig for an unsupported model or a missing size."""
    try:
        position = arguments["position_embedding_type"]
        if position not in ("rope", "learned_absolute"):
            raise BadConfig(f"{name}: position embedding type {position!r} is not known here")
        llama = position == "rope"
        expected = arguments_of_family(llama)
        for field, value in (expected | _ABSENT_HERE).items():
            if arguments.get(field, value) != value:
                raise BadConfig(f"{name}: {field} is {arguments[field]!r} with {position} positions, expected {value!r}")
        if not llama and not arguments.get("bias_gelu_fusion", True) and not arguments.get("openai_gelu", False):
            raise BadConfig(f"{name}: bias_gelu_fusion is False, so GELU is exact, and that of GPT here is Megatron's fused one")
        heads = arguments["num_attention_heads"]
        experts = arguments.get("num_experts")
        return Architecture(
            name=name,
            family="llama" if llama else "gpt",
            num_layers=arguments["num_layers"],
            hidden_size=arguments["hidden_size"],
            ffn_hidden_size=(arguments.get("moe_ffn_hidden_size") if experts else None) or arguments["ffn_hidden_size"],
            num_attention_heads=heads,
            num_query_groups=arguments["num_query_groups"] if arguments.get("group_query_attention") else heads,
            vocab_size=arguments["vocab_size"],
            max_position_embeddings=arguments["max_position_embeddings"],
            kv_channels=arguments.get("kv_channels") or 0,
            norm_epsilon=arguments.get("norm_epsilon", 1e-5),
            rotary_base=float(arguments.get("rotary_base", 10000)),
            rope_scaling=_scaling(arguments),
            tie_embeddings=not arguments["untie_embeddings_and_output_weights"],
            init_std=arguments.get("init_method_std", 0.02),
            rotary_percent=arguments.get("rotary_percent", 1.0),
            add_qkv_bias=llama and arguments.get("add_qkv_bias", False),
            qk_layernorm=arguments.get("qk_layernorm", False),
            sliding_window=_sliding_window(arguments.get("window_size"), name),
            num_experts=experts,
            moe_router_topk=arguments.get("moe_router_topk", 2) if experts else 2,
            moe_aux_loss_coeff=arguments.get("moe_aux_loss_coeff", 0.0) if experts else 0.0,
        )
    except KeyError as error:
        raise BadConfig(f"{name}: the Megatron arguments have no {error}") from None
    except TypeError as error:
        raise BadConfig(f"{name}: the Megatron arguments are malformed: {error}") from None


def _sliding_window(window_size: Any, name: str) -> int | None:
    if window_size is None:
        return None
    left, right = window_size
    if right != 0 or left < 0:
        raise BadConfig(f"{name}: a window of {left} tokens to the left and {right} to the right is not a causal sliding window")
    return int(left) + 1


def arguments_of_family(llama: bool) -> dict[str, Any]:
    """The arguments that are the same for all models of a family."""
    if llama:
        return {"normalization": "RMSNorm", "swiglu": True, "add_bias_linear": False}
    return {"normalization": "LayerNorm", "swiglu": False, "add_bias_linear": True}
