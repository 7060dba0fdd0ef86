"""An `Architecture` as Megatron-LM's command-line arguments (the names in its `args` namespace), and back.

lt-train's own flags carry the same names, its log prints them the way Megatron does, and checkpoints store them, so a run can be
described from any of the three. RoPE scaling is Megatron's `--use-rope-scaling`; only the factor is an argument there, the other
three numbers are constants in megatron-core.
"""

from typing import Any

from lt_shared.architecture import Architecture, RopeScaling
from lt_shared.console import BadConfig

_ABSENT_HERE = {
    "rotary_percent": 1.0,
    "add_qkv_bias": False,
    "qk_layernorm": False,
    "multi_latent_attention": False,
    "num_experts": None,
}


def to_arguments(architecture: Architecture) -> dict[str, Any]:
    """The arguments of `architecture`. Raises BadConfig when its RoPE scaling is not one that Megatron has."""
    llama = architecture.family == "llama"
    scaling = architecture.rope_scaling
    if scaling is not None and scaling != RopeScaling(scaling.factor):
        raise BadConfig(
            f"{architecture.name}: Megatron knows only the factor of a RoPE scaling, the rest must be {RopeScaling(8.0)}"
        )
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
        "normalization": "RMSNorm" if llama else "LayerNorm",
        "norm_epsilon": architecture.norm_epsilon,
        "swiglu": llama,
        "add_bias_linear": not llama,
        "untie_embeddings_and_output_weights": not architecture.tie_embeddings,
        "init_method_std": architecture.init_std,
    }


def from_arguments(arguments: dict[str, Any], name: str) -> Architecture:
    """Read Megatron's arguments, as parsed values. Raises BadConfig when they describe neither family or lack a size."""
    try:
        position = arguments["position_embedding_type"]
        if position not in ("rope", "learned_absolute"):
            raise BadConfig(f"{name}: position embedding type {position!r} is not known here")
        llama = position == "rope"
        expected = arguments_of_family(llama)
        for field, value in (expected | _ABSENT_HERE).items():
            if arguments.get(field, value) != value:
                raise BadConfig(f"{name}: {field} is {arguments[field]!r} with {position} positions, expected {value!r}")
        heads = arguments["num_attention_heads"]
        return Architecture(
            name=name,
            family="llama" if llama else "gpt",
            num_layers=arguments["num_layers"],
            hidden_size=arguments["hidden_size"],
            ffn_hidden_size=arguments["ffn_hidden_size"],
            num_attention_heads=heads,
            num_query_groups=arguments["num_query_groups"] if arguments.get("group_query_attention") else heads,
            vocab_size=arguments["vocab_size"],
            max_position_embeddings=arguments["max_position_embeddings"],
            kv_channels=arguments.get("kv_channels") or 0,
            norm_epsilon=arguments.get("norm_epsilon", 1e-5),
            rotary_base=float(arguments.get("rotary_base", 10000)),
            rope_scaling=RopeScaling(arguments.get("rope_scaling_factor", 8.0)) if arguments.get("use_rope_scaling") else None,
            tie_embeddings=not arguments["untie_embeddings_and_output_weights"],
            init_std=arguments.get("init_method_std", 0.02),
        )
    except KeyError as error:
        raise BadConfig(f"{name}: the Megatron arguments have no {error}") from None
    except TypeError as error:
        raise BadConfig(f"{name}: the Megatron arguments are malformed: {error}") from None


def arguments_of_family(llama: bool) -> dict[str, Any]:
    """The arguments that a family fixes."""
    if llama:
        return {"normalization": "RMSNorm", "swiglu": True, "add_bias_linear": False}
    return {"normalization": "LayerNorm", "swiglu": False, "add_bias_linear": True}
