"""config.json of families whose layers are of two kinds, as published and as versions of transformers write them."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from lt_shared.console import BadConfig
from lt_shared.models.huggingface import from_config, model_type, to_config
from lt_shared.models.presets import preset

OLMO3_LAYERS = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
# The files of the models of these names, but for ids of tokens and what transformers says of itself.
PUBLISHED: dict[str, dict[str, Any]] = {
    "olmo2-1b": {
        "architectures": ["Olmo2ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "initializer_range": 0.02,
        "intermediate_size": 8192,
        "max_position_embeddings": 4096,
        "model_type": "olmo2",
        "num_attention_heads": 16,
        "num_hidden_layers": 16,
        "num_key_value_heads": 16,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 500000,
        "tie_word_embeddings": False,
        "vocab_size": 100352,
    },
    "olmo3-7b": {
        "architectures": ["Olmo3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "initializer_range": 0.02,
        "intermediate_size": 11008,
        "layer_types": OLMO3_LAYERS * 8,
        "max_position_embeddings": 65536,
        "model_type": "olmo3",
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "attention_factor": 1.2079441541679836,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 8.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "yarn",
        },
        "rope_theta": 500000,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
        "vocab_size": 100278,
    },
    "gemma2-2b": {
        "architectures": ["Gemma2ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_logit_softcapping": 50.0,
        "cache_implementation": "hybrid",
        "final_logit_softcapping": 30.0,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 2304,
        "initializer_range": 0.02,
        "intermediate_size": 9216,
        "max_position_embeddings": 8192,
        "model_type": "gemma2",
        "num_attention_heads": 8,
        "num_hidden_layers": 26,
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "use_cache": True,
        "vocab_size": 256000,
    },
    "gemma3-1b": {
        "architectures": ["Gemma3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_logit_softcapping": None,
        "cache_implementation": "hybrid",
        "final_logit_softcapping": None,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 1152,
        "initializer_range": 0.02,
        "intermediate_size": 6912,
        "max_position_embeddings": 32768,
        "model_type": "gemma3_text",
        "num_attention_heads": 4,
        "num_hidden_layers": 26,
        "num_key_value_heads": 1,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06,
        "rope_local_base_freq": 10000,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "vocab_size": 262144,
    },
    # Sizes that are transformers' defaults are not in the file.
    "gemma3-12b": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "initializer_range": 0.02,
        "mm_tokens_per_image": 256,
        "model_type": "gemma3",
        "text_config": {
            "hidden_size": 3840,
            "intermediate_size": 15360,
            "model_type": "gemma3_text",
            "num_attention_heads": 16,
            "num_hidden_layers": 48,
            "num_key_value_heads": 8,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        "vision_config": {"hidden_size": 1152, "image_size": 896, "model_type": "siglip_vision_model", "vision_use_head": False},
    },
    # As transformers 5 writes the same kind of model.
    "gemma3-4b": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "tie_word_embeddings": True,
        "text_config": {
            "model_type": "gemma3_text",
            "vocab_size": 262208,
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-06,
            "query_pre_attn_scalar": 256,
            "sliding_window": 1024,
            "_sliding_window_pattern": 6,
            "use_bidirectional_attention": False,
            "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0,
            "rope_parameters": {
                "full_attention": {"factor": 8.0, "rope_type": "linear"},
                "sliding_attention": {"rope_type": "default"},
            },
            "layer_types": ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(34)],
        },
    },
}
WINDOWED = ("tiny-olmo3", "tiny-gemma2", "tiny-gemma3", "olmo3-32b", "gemma2-27b", "gemma3-27b")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_are_the_presets(name: str) -> None:
    assert from_config(PUBLISHED[name], name) == preset(name)


@pytest.mark.parametrize("name", WINDOWED)
def test_what_transformers_makes_of_a_file_is_the_same_model(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(to_config(preset(name), "float32")))
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.layer_types == to_config(preset(name), "float32")["layer_types"]
    config.save_pretrained(tmp_path / "again")
    assert from_config(json.loads((tmp_path / "again/config.json").read_text()), name) == preset(name)


@pytest.mark.parametrize(("name", "kind"), [("tiny-olmo2", "olmo2"), ("tiny-olmo3", "olmo3"), ("tiny-gemma3", "gemma3_text")])
def test_a_file_without_the_newer_fields_means_the_same(name: str, kind: str) -> None:
    """As transformers 4 writes it."""
    config = to_config(preset(name), "float32")
    del config["rope_parameters"]
    assert config.pop("model_type") == kind
    config.pop("layer_types", None)
    assert from_config(config | {"model_type": kind}, name) == preset(name)


def test_an_olmo3_without_windows_is_an_olmo2() -> None:
    config = to_config(preset("tiny-olmo3"), "float32")
    rope = {"rope_type": "default", "rope_theta": 500000.0}
    full = {"layer_types": ["full_attention"] * 4, "rope_parameters": {"full_attention": rope}, "rope_scaling": None}
    assert model_type(from_config(config | full, "olmo")) == "olmo2"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("tiny-olmo2", {"attention_bias": True}, "attention_bias is True, the olmo2 family here has False"),
        ("tiny-olmo3", {"layer_types": ["full_attention", "sliding_attention"] * 2}, "layer 1 is sliding_attention"),
        ("tiny-olmo3", {"rope_parameters": {"rope_type": "yarn", "factor": 8.0}}, "not by kind of layer"),
        ("tiny-olmo3", {"rope_theta": 1.0, "rope_parameters": None, "rope_scaling": "yarn"}, "malformed"),
        (
            "tiny-olmo3",
            {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
            "layers with a window have a rope scaling of their own",
        ),
        ("tiny-gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ("tiny-gemma2", {"hidden_activation": "gelu"}, "'gelu', the gemma2 family here has gelu_pytorch_tanh"),
        ("tiny-gemma3", {"rope_local_base_freq": 5.0}, "rope_local_base_freq and rope_parameters contradict"),
        ("tiny-gemma3", {"rope_theta": 5.0}, "rope_theta and rope_parameters contradict"),
        ("tiny-gemma3", {"num_hidden_layers": "6"}, "malformed"),
    ],
)
def test_what_has_no_place_here_is_refused(name: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        from_config(to_config(preset(name), "float32") | change, "model")


@pytest.mark.parametrize(
    "change", [{"norm_placement": "post"}, {"embedding_multiplier": 2.0}, {"activation": "silu"}, {"softmax_scale": 0.3}]
)
def test_a_gemma_with_another_feature_has_no_type(change: dict[str, Any]) -> None:
    assert model_type(dataclasses.replace(preset("tiny-gemma3"), **change)) is None
