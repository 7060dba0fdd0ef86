"""Kimi Linear: files as transformers saves them, as they are published, and settings in both forms."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from lt_convert.commands.conversion import Request, convert
from lt_shared.console import BadConfig
from lt_shared.models import huggingface
from lt_shared.models.presets import preset

TINY = preset("tiny-kimi-linear")


def test_transformers_loads_what_is_written(tmp_path: Path) -> None:
    torch.manual_seed(4)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**huggingface.to_config(TINY, "float32")))
    model.save_pretrained(tmp_path / "saved")
    convert(Request(str(tmp_path / "saved"), "megatron-dist", str(tmp_path / "megatron")))
    convert(Request(str(tmp_path / "megatron"), "hf", str(tmp_path / "back")))
    names = load_file(tmp_path / "back/model.safetensors").keys()
    # The published names, which transformers does not write for the dense layer.
    assert {f"model.layers.{layer}.gate_proj.weight" for layer in ("0.mlp", "1.block_sparse_moe.shared_experts")} <= names
    assert {f"model.layers.0.self_attn.{name}" for name in ("A_log", "dt_bias", "q_conv1d.weight", "f_a_proj.weight")} <= names
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "back").state_dict()
    assert loaded.keys() == model.state_dict().keys()
    assert all(torch.equal(loaded[name], value) for name, value in model.state_dict().items())


# moonshotai/Kimi-Linear-48B-A3B-Base, as far as it describes the model.
PUBLISHED: dict[str, Any] = {
    "model_type": "kimi_linear",
    "first_k_dense_replace": 1,
    "head_dim": 72,
    "hidden_act": "silu",
    "hidden_size": 2304,
    "initializer_range": 0.02,
    "intermediate_size": 9216,
    "kv_lora_rank": 512,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "head_dim": 128,
        "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26],
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
    "mla_use_nope": True,
    "model_max_length": 1048576,
    "moe_intermediate_size": 1024,
    "moe_layer_freq": 1,
    "moe_renormalize": True,
    "moe_router_activation_func": "sigmoid",
    "num_attention_heads": 32,
    "num_expert_group": 1,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_hidden_layers": 27,
    "num_key_value_heads": 32,
    "num_nextn_predict_layers": 0,
    "num_shared_experts": 1,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "routed_scaling_factor": 2.446,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "use_grouped_topk": True,
    "v_head_dim": 128,
    "vocab_size": 163840,
}


def test_the_published_settings(tmp_path: Path) -> None:
    published = huggingface.from_config(PUBLISHED, "kimi-linear-48b-a3b")
    expected = preset("kimi-linear-48b-a3b").to_record() | {"moe_aux_loss_coeff": 0.0}
    assert published.to_record() == expected
    assert published.parameters() == 49_122_675_072
    # transformers saves sizes and lists of its own in place of linear_attn_config.
    AutoConfig.for_model(**PUBLISHED).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    del saved["linear_attn_config"]
    assert huggingface.from_config(saved, published.name) == published


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mla_use_nope": False}, "mla_use_nope is False, the kimi_linear family here has True"),
        ({"moe_renormalize": False}, "norm_topk_prob is False"),
        ({"n_group": 2}, "num_expert_group and n_group are one setting"),
        ({"linear_head_dim": 64}, "linear_head_dim and linear_attn_config.head_dim contradict each other"),
        ({"linear_attn_config": PUBLISHED["linear_attn_config"] | {"kda_layers": [1, 2]}}, "each of the layers 1 to 27 once"),
        ({"layer_types": ["linear_attention"] * 27}, "layer_types and linear_attn_config contradict each other"),
        ({"mlp_layer_types": ["sparse"] * 27}, "only first layers without experts"),
    ],
)
def test_settings_that_change_the_model_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        huggingface.from_config(PUBLISHED | change, "run")
