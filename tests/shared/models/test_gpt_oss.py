"""gpt-oss's config.json in all spellings that exist means what transformers makes of it, and nothing is lost or guessed."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, GptOssConfig

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import from_config, to_config
from lt_shared.models.megatron_arguments import from_arguments, to_arguments
from lt_shared.models.presets import preset

# openai/gpt-oss-20b of August 2025, without its quantization_config.
PUBLISHED: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": 200002,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "output_router_logits": False,
    "pad_token_id": 199999,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "router_aux_loss_coef": 0.9,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "transformers_version": "4.55.0.dev0",
    "use_cache": True,
    "vocab_size": 201088,
}
# A file of an inference engine's tests: OpenAI's names, and transformers' defaults for the rest.
BY_OPENAIS_NAMES: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 4,
    "num_experts": 128,
    "experts_per_token": 4,
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "sliding_window": 128,
    "initial_context_length": 4096,
    "rope_theta": 150000,
    "rope_scaling_factor": 32.0,
    "rope_ntk_alpha": 1,
    "rope_ntk_beta": 32,
}


def test_the_published_file() -> None:
    expected = dataclasses.replace(preset("gpt-oss-20b"), moe_aux_loss_coeff=0.9)
    assert from_config(PUBLISHED, "gpt-oss-20b") == expected


def test_a_file_by_openais_names() -> None:
    read = from_config(BY_OPENAIS_NAMES, "gpt-oss-120b")
    assert read == dataclasses.replace(preset("gpt-oss-120b"), num_layers=4)


def test_what_transformers_leaves_out_or_renames(tmp_path: Path) -> None:
    GptOssConfig(num_hidden_layers=24, num_local_experts=32).save_pretrained(tmp_path)
    assert from_config(json.loads((tmp_path / "config.json").read_text()), "gpt-oss-20b") == preset("gpt-oss-20b")


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("change", [{}, {"sliding_window": None, "window_attn_skip_freq": None}, {"rope_scaling": None}])
def test_round_trip(tmp_path: Path, layers: int, change: dict[str, Any]) -> None:
    architecture = dataclasses.replace(preset("tiny-gpt-oss"), num_layers=layers, **change)
    written = to_config(architecture, "float32")
    assert from_config(json.loads(json.dumps(written)), architecture.name) == architecture
    AutoConfig.for_model(**written).save_pretrained(tmp_path)
    assert from_config(json.loads((tmp_path / "config.json").read_text()), architecture.name) == architecture
    assert Architecture.from_record(json.loads(json.dumps(architecture.to_record()))) == architecture


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention_bias": False}, "attention_bias is False"),
        ({"swiglu_limit": 10.0}, r"swiglu_limit is 10\.0"),
        ({"swiglu_alpha": 1.5}, r"swiglu_alpha is 1\.5"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"experts_per_token": 2}, "num_experts_per_tok and experts_per_token are one setting"),
        ({"num_experts_per_tok": None, "experts_per_token": 2}, "no num_experts_per_tok"),
        ({"num_experts": 64}, "num_experts and num_local_experts are one setting|contradict"),
        ({"initial_context_length": 8192}, "initial_context_length is 8192"),
        ({"rope_ntk_beta": 16}, "rope_ntk_beta is 16"),
        ({"layer_types": ["full_attention", "sliding_attention"] * 12}, "layer_types has"),
        ({"sliding_window": None}, "sliding_window is None"),
        ({"rope_scaling": None}, "rope_scaling is null"),
    ],
)
def test_what_has_no_place_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        from_config(PUBLISHED | change, "gpt-oss-20b")


def test_megatrons_arguments() -> None:
    arguments = to_arguments(preset("gpt-oss-20b"))
    assert arguments["window_size"] == (127, 0)
    assert (arguments["position_embedding_type"], arguments["yarn_correction_range_round_to_int"]) == ("yarn", False)
    assert (arguments["add_bias_linear"], arguments["add_qkv_bias"], arguments["swiglu"]) == (True, True, False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"softmax_type": "off-by-one"}, "softmax_type is 'off-by-one'"),
        ({"activation_func_clamp_value": None}, "activation with quick_geglu True"),
        ({"glu_linear_offset": 0.0}, "glu_linear_offset 0.0"),
        ({"quick_geglu": False, "swiglu": True}, "activation with quick_geglu False"),
    ],
)
def test_megatrons_arguments_of_another_model(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        from_arguments(to_arguments(preset("gpt-oss-20b")) | change, "run")
