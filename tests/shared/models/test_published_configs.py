"""config.json files as they were published, copied from projects that carry them: each is its preset, or says its sizes.

Sources: Qwen3-30B-A3B from a Rust loader's tests, Phi-3-mini-4k-instruct from a compiler's tests, Granite 4.1 3B and 4.2 from two
inference engines' tests; found on GitHub on 2026-11-25.
"""

from typing import Any

import pytest

from lt_shared.models.huggingface import from_config, model_type, to_config
from lt_shared.models.presets import preset

QWEN3_30B_A3B: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
PHI3_MINI_4K: dict[str, Any] = {
    "_name_or_path": "Phi-3-mini-4k-instruct",
    "architectures": ["Phi3ForCausalLM"],
    "attention_dropout": 0.0,
    "auto_map": {
        "AutoConfig": "configuration_phi3.Phi3Config",
        "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
    },
    "bos_token_id": 1,
    "embd_pdrop": 0.0,
    "eos_token_id": 32000,
    "hidden_act": "silu",
    "hidden_size": 3072,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "model_type": "phi3",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "original_max_position_embeddings": 4096,
    "pad_token_id": 32000,
    "resid_pdrop": 0.0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "sliding_window": 2047,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.40.2",
    "use_cache": True,
    "attention_bias": False,
    "vocab_size": 32064,
}
GRANITE_4_1_3B: dict[str, Any] = {
    "architectures": ["GraniteForCausalLM"],
    "model_type": "granite",
    "hidden_size": 2560,
    "intermediate_size": 8192,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "vocab_size": 100352,
    "rope_theta": 10000000.0,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": True,
    "attention_multiplier": 0.015625,
    "embedding_multiplier": 12.0,
    "logits_scaling": 10.0,
    "residual_multiplier": 0.22,
    "max_position_embeddings": 131072,
    "bos_token_id": 100257,
    "eos_token_id": 100257,
    "pad_token_id": 100256,
}
GRANITE_4_2: dict[str, Any] = GRANITE_4_1_3B | {
    "tie_word_embeddings": False,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
    "rope_theta": 10000000,
    "rope_parameters": {"rope_theta": 10000000, "rope_type": "default"},
    "rope_scaling": None,
}


@pytest.mark.parametrize(("config", "name"), [(QWEN3_30B_A3B, "qwen3-30b-a3b"), (PHI3_MINI_4K, "phi3-mini-4k")])
def test_a_published_config_is_the_preset(config: dict[str, Any], name: str) -> None:
    assert from_config(config, name) == preset(name)


@pytest.mark.parametrize(("config", "parameters"), [(GRANITE_4_1_3B, 3_402_836_480), (GRANITE_4_2, 3_659_737_600)])
def test_a_published_config_of_other_sizes(config: dict[str, Any], parameters: int) -> None:
    """A sum over the tensors: 40 layers of 78,648,320 parameters, the final norm, one or two tables of 100,352 rows."""
    architecture = from_config(config, "model")
    assert architecture.parameters() == parameters
    assert model_type(architecture) == config["model_type"]
    assert from_config(to_config(architecture, "bfloat16"), "model") == architecture
