"""DeepSeek's and Kimi K2's config.json: the published ones, those of transformers 4 and 5, and what has no place here."""

import dataclasses
from typing import Any

import pytest
from transformers import AutoConfig

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import from_config, model_type, to_config
from lt_shared.models.megatron_arguments import from_arguments, to_arguments
from lt_shared.models.presets import PRESETS, preset

NAMES = [name for name, architecture in PRESETS.items() if architecture.latent_attention]


def yarn(factor: float, mscale: float, beta_fast: float = 32) -> dict[str, Any]:
    return {
        "beta_fast": beta_fast,
        "beta_slow": 1,
        "factor": factor,
        "mscale": mscale,
        "mscale_all_dim": mscale,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    }


COMMON = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "ep_size": 1,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "kv_lora_rank": 512,
    "moe_layer_freq": 1,
    "pretraining_tp": 1,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "seq_aux": True,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "transformers_version": "4.33.1",
    "v_head_dim": 128,
    "aux_loss_alpha": 0.001,
}
V3 = COMMON | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "rope_scaling": yarn(40, 1.0),
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "vocab_size": 129280,
}
KIMI_K2 = V3 | {
    "model_type": "kimi_k2",
    "first_k_dense_replace": 1,
    "max_position_embeddings": 131072,
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": 384,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "num_nextn_predict_layers": 0,
    "rope_scaling": yarn(32.0, 1.0, beta_fast=1.0),
    "rope_theta": 50000.0,
    "routed_scaling_factor": 2.827,
    "vocab_size": 163840,
}
V2_LITE = COMMON | {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "first_k_dense_replace": 1,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 1408,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "rope_scaling": yarn(40, 0.707),
    "rope_theta": 10000,
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "topk_group": 1,
    "topk_method": "greedy",
    "vocab_size": 102400,
}
# As NVIDIA NeMo's tests have it, and with the loss coefficient of the published file.
V2 = V2_LITE | {
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "n_group": 8,
    "n_routed_experts": 160,
    "num_attention_heads": 128,
    "num_hidden_layers": 60,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "routed_scaling_factor": 16.0,
    "topk_group": 3,
    "topk_method": "group_limited_greedy",
}
PUBLISHED = {"deepseek-v2": V2, "deepseek-v3": V3, "kimi-k2": KIMI_K2, "deepseek-v2-lite": V2_LITE}


def for_any_training(architecture: Architecture) -> Architecture:
    return dataclasses.replace(architecture, moe_aux_loss_coeff=0.0)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_file_is_the_preset(name: str) -> None:
    assert for_any_training(from_config(PUBLISHED[name], name)) == for_any_training(preset(name))


@pytest.mark.parametrize("name", NAMES)
def test_what_transformers_keeps_of_what_is_written(name: str) -> None:
    """transformers 5 has other names for the groups of settings, and drops the model type of Kimi K2."""
    written = to_config(preset(name), "bfloat16")
    assert from_config(written, name) == preset(name)
    kept = AutoConfig.for_model(**written | {"model_type": written["model_type"].replace("kimi_k2", "deepseek_v3")}).to_dict()
    assert from_config(kept | {"model_type": written["model_type"]}, name) == preset(name)


@pytest.mark.parametrize("name", NAMES)
def test_megatrons_arguments_there_and_back(name: str) -> None:
    assert from_arguments(to_arguments(preset(name)), name) == preset(name)


def test_groups_that_are_scored_in_another_way_are_refused() -> None:
    """A run of megatron-core with V2's groups scores them by their two best experts, as no model of transformers does."""
    trained = from_arguments(to_arguments(preset("deepseek-v2")) | {"lt_moe_router_group_score_topk": None}, "megatron")
    assert trained.group_score_topk == 2
    with pytest.raises(BadConfig, match="megatron: has no Hugging Face form here") as refused:
        to_config(trained, "bfloat16")
    assert refused.value.hint == "the nearest is deepseek_v2, which has moe_router_group_score_topk 1, not None"


def test_model_types() -> None:
    assert [model_type(preset(name)) for name in ("deepseek-v3", "kimi-k2", "deepseek-v2-lite")] == [
        *("deepseek_v3", "kimi_k2", "deepseek_v2")
    ]
    unnormalised = to_arguments(preset("deepseek-v3")) | {"moe_router_pre_softmax": True}
    assert from_arguments(unnormalised, "deepseek-v3") == preset("deepseek-v3")


@pytest.mark.parametrize(
    ("base", "change", "message"),
    [
        (V3, {"num_experts_per_tok": 129}, "129 of 256 experts cannot be chosen from 4 of 8 groups"),
        (V3, {"norm_topk_prob": False}, "norm_topk_prob is False"),
        (V3, {"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
        (V3, {"moe_layer_freq": 2}, "moe_layer_freq is 2"),
        (V3, {"rope_interleave": False}, "rope_interleave is False"),
        (V3, {"attention_bias": True}, "attention_bias is True"),
        (V3, {"n_shared_experts": 0}, "n_shared_experts is 0"),
        (V3, {"num_key_value_heads": 8}, "latent attention has a key for each of 128 heads"),
        (V3, {"num_mtp_layers": 2}, "one setting, and contradict each other"),
        (V2_LITE, {"topk_method": "noaux_tc"}, "topk_method is 'noaux_tc'"),
        (V2, {"n_group": 7}, "cannot be chosen from 3 of 7 groups"),
        (V2_LITE, {"norm_topk_prob": True}, "norm_topk_prob is True"),
    ],
)
def test_what_has_no_place_is_refused(base: dict[str, Any], change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        from_config(base | change, "deepseek")
