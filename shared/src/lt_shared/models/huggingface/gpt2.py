"""GPT-2 in transformers: other names for all settings."""

from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface.config_fields import ModelType, check_values

# The tanh approximation of GELU, which Megatron computes, under both of its names.
GELU = ("gelu_new", "gelu_pytorch_tanh")
_ABSENT = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}


def _write(architecture: Architecture) -> dict[str, Any]:
    return {
        "n_embd": architecture.hidden_size,
        "n_inner": architecture.ffn_hidden_size,
        "n_layer": architecture.num_layers,
        "n_head": architecture.num_attention_heads,
        "n_positions": architecture.max_position_embeddings,
        # transformers ignores it. OpenAI's files have it, and llama.cpp's converter reads the context length there alone.
        "n_ctx": architecture.max_position_embeddings,
        "layer_norm_epsilon": architecture.norm_epsilon,
        "activation_function": GELU[0],
    }


def _read(config: dict[str, Any], name: str) -> Architecture:
    check_values(config, _ABSENT, name, "gpt2")
    activation = config.get("activation_function", GELU[0])
    if activation not in GELU:
        raise BadConfig(f"{name}: activation_function is {activation!r}, the gpt2 family here has {' or '.join(GELU)}")
    return Architecture(
        name=name,
        family="gpt",
        num_layers=config["n_layer"],
        hidden_size=config["n_embd"],
        ffn_hidden_size=config.get("n_inner") or 4 * config["n_embd"],
        num_attention_heads=config["n_head"],
        num_query_groups=config["n_head"],
        vocab_size=config["vocab_size"],
        max_position_embeddings=config["n_positions"],
        norm_epsilon=config.get("layer_norm_epsilon", 1e-5),
        tie_embeddings=config.get("tie_word_embeddings", True),
        init_std=config.get("initializer_range", 0.02),
    )


_ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
GPT2 = ModelType("gpt2", "GPT2LMHeadModel", _write, _read, _ALIASES)
