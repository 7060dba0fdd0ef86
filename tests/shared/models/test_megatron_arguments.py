"""An architecture survives as Megatron's arguments, and what those say beyond it is refused."""

import dataclasses
from typing import Any

import pytest
from megatron.core.transformer import TransformerConfig

from lt_shared.console import BadConfig
from lt_shared.models.architecture import RopeScaling
from lt_shared.models.megatron_arguments import absent_in_megatron, from_arguments, to_arguments
from lt_shared.models.presets import PRESETS, preset

LLAMA = preset("llama3.2-1b")


@pytest.mark.parametrize("name", PRESETS)
def test_round_trip(name: str) -> None:
    assert from_arguments(to_arguments(preset(name)), name) == preset(name)


@pytest.mark.parametrize("name", ["llama3.2-1b", "gpt3-1.7b", "mistral-7b", "qwen2-7b", "qwen3-8b", "mixtral-8x7b"])
def test_names_are_megatrons(name: str) -> None:
    """Those that megatron-core's configuration has under the same name mean the same there."""
    fields = {field.name for field in dataclasses.fields(TransformerConfig)}
    same = {key: value for key, value in to_arguments(preset(name)).items() if key in fields}
    assert {"num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels"} <= set(same)
    config = TransformerConfig(**same, num_moe_experts=preset(name).num_experts)
    assert {key: getattr(config, key) for key in same} == same


@pytest.mark.parametrize(
    ("former", "field", "model"),
    [("norm_epsilon", "layernorm_epsilon", "qwen2-7b"), ("apply_layernorm_1p", "layernorm_zero_centered_gamma", "gemma-2b")],
)
def test_names_since_megatron_0_16(former: str, field: str, model: str) -> None:
    """Megatron-LM 0.16 builds these options from TransformerConfig, and its namespace has the names of the fields."""
    architecture = preset(model)
    arguments = to_arguments(architecture)
    value = arguments.pop(former)
    assert value == getattr(TransformerConfig(num_layers=2, hidden_size=64, num_attention_heads=4, **{field: value}), field)
    assert from_arguments(arguments, model) != architecture
    assert from_arguments(arguments | {field: value}, model) == architecture
    assert from_arguments(arguments | {field: value, former: value}, model) == architecture
    other = not value if isinstance(value, bool) else 3 * value
    with pytest.raises(BadConfig, match=f"{field} is {other!r}, and {former}, its former name, is {value!r}"):
        from_arguments(arguments | {field: other, former: value}, model)


def test_megatrons_defaults_are_read() -> None:
    arguments = to_arguments(LLAMA) | {
        "group_query_attention": False,
        "num_query_groups": 1,
        "use_rope_scaling": False,
        "rotary_percent": 1.0,
        "add_qkv_bias": False,
        "qk_layernorm": False,
        "num_experts": None,
        "kv_channels": None,
    }
    architecture = from_arguments(arguments, "run")
    assert architecture.num_query_groups == architecture.num_attention_heads == 32
    assert architecture.rope_scaling is None
    assert architecture.kv_channels == 64


def _delta(**changes: Any) -> dict[str, Any]:
    return {"experimental_attention_variant": "gated_delta_net", "linear_attention_freq": 2, **changes}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"position_embedding_type": "none"}, "position embedding type 'none'"),
        (
            {"position_embedding_type": "none", "hybrid_override_pattern": "G-M*-"},
            r"layer 0 of the layer pattern 'G-M\*-' is a gated delta layer",
        ),
        (
            {"linear_attention_freq": 4},
            "is None, known here are gated_delta_net, kimi_delta_attention",
        ),
        (_delta(linear_attention_freq=[1, 0, 1]), r"linear_attention_freq is \[1, 0, 1\], not 0 or 1 for each of"),
        (_delta(linear_attention_freq=0), "linear_attention_freq is 0, neither a number of layers"),
        ({"normalization": "L2Norm"}, "normalization is 'L2Norm', must be RMSNorm or LayerNorm"),
        ({"swiglu": False, "bias_gelu_fusion": False}, "bias_gelu_fusion is False, so GELU is exact"),
        ({"squared_relu": True}, "squared_relu with swiglu"),
        ({"multi_latent_attention": True}, "have no 'q_lora_rank'"),
        ({"qk_l2_norm": True}, "qk_l2_norm is True"),
        ({"num_experts": 8, "moe_layer_freq": 2}, "moe_layer_freq is 2, and only first layers without experts"),
        ({"num_experts": 8, "moe_layer_freq": [0, 1]}, r"moe_layer_freq is \[0, 1\]"),
        ({"num_experts": 8, "moe_layer_freq": 0}, "moe_layer_freq is 0, neither"),
        ({"num_experts": 8, "moe_layer_freq": "[0,1]"}, "moe_layer_freq is '.0,1.', neither"),
        ({"window_size": 128}, "window_size is 128, not two numbers"),
        ({"window_size": "128,0"}, "window_size is '128,0', not two numbers"),
        ({"window_size": (128, 0, 0)}, "not two numbers"),
        ({"rotary_base": "a lot"}, "malformed.*a lot"),
        ({"spec": ["acme.layers", "build"]}, "spec is 'acme.layers.build'"),
        ({"window_size": (128, 128)}, "128 tokens to the left and 128 to the right"),
        ({"rotary_interleaved": True}, "rotary_interleaved is True"),
        ({"moe_apply_probs_on_input": True, "num_experts": 4}, "moe_apply_probs_on_input is True"),
        ({"vocab_size": None}, "malformed"),
    ],
)
def test_another_architecture_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=f"run: .*{message}"):
        from_arguments(to_arguments(LLAMA) | change, "run")


def test_only_the_approximate_gelu_is_known() -> None:
    """megatron-core's fused kernel computes it by hyperbolic tangent, as OpenAI did; its plain one exactly."""
    arguments = to_arguments(preset("gpt3-1.7b"))
    for same in ({}, {"bias_gelu_fusion": True}, {"bias_gelu_fusion": False, "openai_gelu": True}):
        assert from_arguments(arguments | same, "gpt3-1.7b") == preset("gpt3-1.7b")
    with pytest.raises(BadConfig, match="run: bias_gelu_fusion is False"):
        from_arguments(arguments | {"bias_gelu_fusion": False, "openai_gelu": False}, "run")
    assert from_arguments(to_arguments(LLAMA) | {"bias_gelu_fusion": False}, LLAMA.name) == LLAMA


def test_a_missing_size_is_named() -> None:
    arguments = to_arguments(LLAMA)
    del arguments["hidden_size"]
    with pytest.raises(BadConfig, match="run: the Megatron arguments have no 'hidden_size'"):
        from_arguments(arguments, "run")


def test_a_scaling_that_megatron_lacks_survives() -> None:
    other = dataclasses.replace(LLAMA, rope_scaling=RopeScaling(32.0, original_max_position_embeddings=4096))
    arguments = to_arguments(other)
    assert (arguments["use_rope_scaling"], arguments["rope_scaling_factor"]) == (True, 32.0)
    assert from_arguments(arguments, LLAMA.name) == other
    assert not any(name.startswith("lt_") for name in to_arguments(LLAMA))


def test_features_of_a_family() -> None:
    assert to_arguments(preset("mistral-7b"))["window_size"] == (4095, 0)
    assert to_arguments(preset("qwen2.5-7b"))["add_qkv_bias"] is True
    assert to_arguments(preset("qwen3-8b"))["qk_layernorm"] is True
    experts = to_arguments(preset("mixtral-8x7b"))
    assert (experts["num_experts"], experts["moe_ffn_hidden_size"], experts["moe_aux_loss_coeff"]) == (8, 14336, 0.02)
    assert from_arguments(experts | {"ffn_hidden_size": 1}, "mixtral-8x7b") == preset("mixtral-8x7b")


def latent(**changes: Any) -> Any:
    """How positions of DeepSeek-V3 are scaled that was trained by Megatron-LM with such arguments."""
    said = {"rope_type": None, "rotary_scaling_factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32.0}
    arguments = to_arguments(preset("deepseek-v3")) | said
    arguments.pop("original_max_position_embeddings")
    return from_arguments(arguments | changes, "run").rope_scaling


def test_latent_attention_has_yarn_where_megatron_lm_says_nothing() -> None:
    """`MLATransformerConfig` has it, and `--rope-type` is None by default."""
    assert latent() == preset("deepseek-v3").rope_scaling
    assert latent(rope_type="yarn", original_max_position_embeddings=8192).original_max_position_embeddings == 8192
    assert latent(rotary_scaling_factor=1.0) is None
    assert latent(rope_type="rope", rotary_scaling_factor=1.0) is None
    assert latent(rope_type="rope", mscale_all_dim=0.0) is None


def test_plain_rope_whose_scores_are_multiplied_is_refused() -> None:
    """As megatron-core 0.16.1 and 0.19.2 do: (0.1 ln 40 + 1)^2 = 1.87."""
    with pytest.raises(BadConfig, match=r"rope_type rope with rotary_scaling_factor 40.0 and mscale_all_dim 1.0"):
        latent(rope_type="rope")


def test_the_epsilon_of_latents_is_told() -> None:
    other = dataclasses.replace(preset("deepseek-v3"), norm_epsilon=1e-3)
    assert [said for said in absent_in_megatron(other) if "epsilon" in said]
    assert not [said for said in absent_in_megatron(preset("deepseek-v3")) if "epsilon" in said]


def test_layers_of_another_number_are_told_as_such() -> None:
    with pytest.raises(BadConfig, match="of 5 layers, and the model has 61"):
        from_arguments(to_arguments(preset("deepseek-v3")) | {"moe_layer_freq": [0] + [1] * 4}, "run")


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ({"swiglu": False}, {"activation": "gelu_tanh", "gated_linear_unit": False}),
        ({"swiglu": False, "squared_relu": True}, {"activation": "relu2", "gated_linear_unit": False}),
        ({"normalization": "LayerNorm"}, {"normalization": "LayerNorm"}),
        ({"no_rope_freq": 2}, {"no_rope_freq": 2}),
        ({"num_layers": 4, "no_rope_freq": [0, 0, 0, 1]}, {"num_layers": 4, "no_rope_freq": 4}),
        ({"num_layers": 4, "no_rope_freq": [0, 0, 1, 0]}, {"num_layers": 4, "no_rope_freq": 3}),
    ],
)
def test_layers_of_another_style_are_read(arguments: dict[str, Any], fields: dict[str, Any]) -> None:
    base = preset("tiny")
    expected = dataclasses.replace(base, **fields)
    assert from_arguments(to_arguments(base) | arguments, base.name) == expected
    assert from_arguments(to_arguments(expected), base.name) == expected
