"""What the published config.json files of Ministral 3, Hunyuan, Granite 4, Cohere and OLMo 1 say, and what is refused of them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.models.hunyuan_v1_dense.modeling_hunyuan_v1_dense import HunYuanDenseV1RotaryEmbedding

from lt_shared.console import BadConfig
from lt_shared.models.architecture import SideBySide
from lt_shared.models.huggingface import from_config, model_type, to_config
from lt_shared.models.presets import preset


def written(name: str, **changes: Any) -> dict[str, Any]:
    return to_config(preset(name), "bfloat16") | changes


@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
def test_hunyuan_raises_the_rotary_base_once(spelling: str) -> None:
    rope = {"type": "dynamic", "rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0, "rope_theta": 10000.0}
    config = written("tiny-hunyuan", rope_scaling=None, rope_parameters=None, rope_theta=10000.0) | {spelling: rope}
    architecture = from_config(config, "published")
    theirs = HunYuanDenseV1RotaryEmbedding(AutoConfig.for_model(**config | {"rope_parameters": rope})).inv_freq
    size = architecture.kv_channels
    ours = 1.0 / architecture.rotary_base ** (torch.arange(0, size, 2).float() / size)
    assert architecture.rotary_base > 1e7
    torch.testing.assert_close(ours, theirs)


def test_of_a_ministral_that_sees_the_language_model_is_read() -> None:
    text = written("ministral3-8b")
    whole = {"model_type": "mistral3", "text_config": text, "vision_config": {"model_type": "pixtral"}}
    architecture = from_config(whole, "ministral3-8b")
    assert architecture == preset("ministral3-8b")
    assert model_type(architecture) == "ministral3"
    fourth = from_config(whole | {"text_config": written("mistral-small-4")}, "mistral-small-4")
    assert fourth == preset("mistral-small-4")
    with pytest.raises(BadConfig, match="the language model in a mistral3 is a 'mistral', known here are ministral3 and"):
        from_config(whole | {"text_config": written("mistral-7b")}, "small")


def test_a_ministral_without_rotary_settings_has_those_of_transformers(tmp_path: Path) -> None:
    config = written("ministral3-8b")
    for field in ("rope_parameters", "rope_scaling", "rope_theta"):
        del config[field]
    assert from_config(config, "ministral3-8b") == preset("ministral3-8b")


@pytest.mark.parametrize("names", ["layer_types", "layers_block_type"])
def test_granite_4_is_read_under_the_published_names(names: str) -> None:
    config = written("granite-4.0-micro")
    config.pop("layer_types")
    assert from_config(config | {names: ["attention"] * 40}, "granite-4.0-micro") == preset("granite-4.0-micro")
    hybrid = written("granite-4.0-h-micro")
    types = ["attention" if kind == "full_attention" else "mamba" for kind in hybrid.pop("layer_types")]
    assert from_config(hybrid | {names: types}, "granite-4.0-h-micro") == preset("granite-4.0-h-micro")
    with pytest.raises(BadConfig, match="Mamba-2 in the layers"):
        from_config(hybrid, "all Mamba")
    with pytest.raises(BadConfig, match="layer 39 is 'rwkv', known here are linear_attention and full_attention"):
        from_config(hybrid | {names: [*types[:39], "rwkv"]}, "other")
    with pytest.raises(BadConfig, match="39 types of layers, and num_hidden_layers is 40"):
        from_config(hybrid | {names: types[:39]}, "short")
    with pytest.raises(BadConfig, match="only time steps without a largest one are known here"):
        from_config(hybrid | {names: types, "time_step_limit": [0.0, 1.0]}, "limited")
    with pytest.raises(BadConfig, match="mamba_proj_bias is True"):
        from_config(hybrid | {names: types, "mamba_proj_bias": True}, "biases")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("tiny-hunyuan", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic RoPE without alpha"),
        ("tiny-hunyuan", {"use_qk_norm": False}, "use_qk_norm is False"),
        ("tiny-ernie4.5-moe", {"moe_norm_min": 0.3}, "moe_norm_min is 0.3"),
        ("tiny-glm-5", {"topk_group": 0}, "moe_router_group_topk is 0, must be positive"),
        ("tiny-kimi-linear", {"topk_group": 0}, "moe_router_group_topk is 0, must be positive"),
        (
            "tiny-deepseek-v32",
            {
                "rope_parameters": {"rope_type": "linear", "factor": 2.0, "mscale_all_dim": 1.0},
                "rope_scaling": None,
                "rope_theta": None,
            },
            "mscale_all_dim beside linear scaling",
        ),
        ("tiny-falcon-h1-norm", {"mamba_norm_before_gate": True}, "mamba_norm_before_gate is True"),
        ("tiny-falcon-h1", {"projectors_bias": True}, "projectors_bias is True"),
        ("tiny-falcon-h1", {"ssm_multipliers": [1.0, 1.0]}, "mamba_parts has 2 factors"),
        ("tiny-falcon-h1", {"key_multiplier": 0.0}, "attention_keys is 0.0, must be positive"),
        ("tiny-falcon-h1", {"mamba_d_ssm": 128}, "8 Mamba heads of 32 channels, and mamba_d_ssm makes a width of 128"),
        ("tiny-ministral3", {"rope_scaling": {"rope_type": "yarn", "llama_4_scaling_beta": 0.2}}, "0.1 and 0.2"),
        ("tiny-ministral3", {"rope_parameters": {"rope_type": "yarn"}, "rope_scaling": None}, "scaling_beta is missing"),
        (
            "tiny-ministral3",
            {"rope_parameters": {"llama_4_scaling_beta": 0.1}, "rope_scaling": None},
            "needs YaRN's original positions",
        ),
        ("tiny-mistral4", {"n_group": 4, "topk_group": 2}, "n_group is 4"),
        ("tiny-mistral4", {"norm_topk_prob": False}, "norm_topk_prob is False"),
        ("tiny-ernie4.5-moe", {"moe_layer_interval": 2}, "moe_layer_interval or moe_layer_end_index leaves some layers"),
        ("tiny-hunyuan-moe", {"moe_topk": [2, 2, 1, 2]}, "moe_topk is"),
        ("tiny-hunyuan-moe", {"moe_intermediate_size": [64] * 4}, "moe_intermediate_size is 64"),
        ("tiny-apertus", {"hidden_act": "silu"}, "hidden_act is 'silu'"),
        ("tiny-cohere", {"use_qk_norm": True}, "use_qk_norm is True"),
        ("tiny-cohere", {"attention_bias": True}, "attention_bias is True"),
        ("tiny-cohere2", {"sliding_window": None}, "layers with a window, and sliding_window is null"),
        ("tiny-olmo", {"attention_bias": True}, "attention_bias is True"),
    ],
)
def test_what_would_be_another_model_is_refused(name: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        from_config(written(name, **change), name)


def test_falcon_h1_without_its_factors() -> None:
    config = to_config(preset("tiny-falcon-h1"), "float32")
    factors = [name for name in config if "multiplier" in name]
    assert len(factors) == 9
    bare = from_config({name: value for name, value in config.items() if name not in factors}, "bare")
    assert bare.side_by_side == SideBySide()
    assert (bare.embedding_multiplier, bare.logits_scaling) == (1, 1)
    wide = from_config(config | {"mamba_d_ssm": None, "mamba_expand": 2}, "wide")
    assert wide.mamba == preset("tiny-falcon-h1").mamba


def test_the_size_of_a_head_in_a_file_counts() -> None:
    for name in ("tiny-cohere2", "tiny-olmo"):
        config = to_config(preset(name), "float32")
        assert from_config(config | {"head_dim": 64}, "wide").kv_channels == 64
        assert from_config({**config, "head_dim": None}, "usual").kv_channels == 32


def test_olmo_hybrid_takes_the_first_rotary_base_that_is_there() -> None:
    """A base of null in rope_parameters, or beside them if they have none, means no rotation."""
    config = to_config(preset("tiny-olmo-hybrid"), "float32")
    bare = {name: value for name, value in config.items() if not name.startswith("rope_")}
    parameters = {"rope_type": "default"}
    assert from_config(bare | {"rope_parameters": parameters, "rope_theta": None}, "null").no_rope_freq == 1
    assert from_config(bare | {"rope_parameters": parameters | {"rope_theta": None}}, "null").no_rope_freq == 1
    assert from_config(bare | {"rope_parameters": parameters}, "missing").no_rope_freq is None
    assert from_config(bare, "missing").rotary_base == 10000.0
