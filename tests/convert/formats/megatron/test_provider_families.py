"""Checkpoints of Megatron-Bridge of models with latent attention and prediction layers: as lt-convert's own of the same model."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from safetensors.torch import load_file

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_convert.formats.megatron import provider_gemma
from lt_shared.console import BadData
from lt_shared.models import huggingface
from lt_shared.models.architecture import Architecture, LatentAttention
from lt_shared.models.megatron_arguments import to_arguments
from lt_shared.models.presets import preset
from lt_shared.models.rope_scaling import YarnScaling

SIGMOID: dict[str, Any] = {
    "num_experts": 4,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 24,
    "moe_first_dense_layers": 1,
    "moe_shared_expert_intermediate_size": 24,
    "moe_router_score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "moe_router_topk_scaling_factor": 2.5,
}
LATENT = LatentAttention(q_lora_rank=16, kv_lora_rank=16, qk_head_dim=8, qk_pos_emb_head_dim=8, v_head_dim=8)
GLM = Architecture("run", "llama", 3, 32, 96, 4, 2, 250, 64, rotary_percent=0.5, add_qkv_bias=True, mtp_num_layers=1, **SIGMOID)
DEEPSEEK = Architecture(
    *("run", "llama", 3, 32, 96, 4, 4, 250, 64), norm_epsilon=1e-6, latent_attention=LATENT, mtp_num_layers=1, **SIGMOID
)
YARN = dataclasses.replace(DEEPSEEK, rope_scaling=YarnScaling(40.0, 4096, mscale=1.0, mscale_all_dim=1.0))
GPT_OSS = dataclasses.replace(
    preset("gpt-oss-20b"), name="run", num_layers=2, hidden_size=32, ffn_hidden_size=48, moe_ffn_hidden_size=48, num_experts=4,
    num_attention_heads=4, num_query_groups=2, kv_channels=8, vocab_size=250, moe_router_topk=2,
)  # fmt: skip
GEMMA_SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 7, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "vocab_size": 250, "max_position_embeddings": 64, "query_pre_attn_scalar": 8,
}  # fmt: skip
GEMMA2 = huggingface.from_config({"model_type": "gemma2", "sliding_window": 24, **GEMMA_SIZES}, "run")
GEMMA3 = huggingface.from_config(
    {"model_type": "gemma3_text", "sliding_window": 24, "rope_scaling": {"rope_type": "linear", "factor": 8.0}, **GEMMA_SIZES},
    "run",
)
# As the provider classes name what is Gemma's own.
GEMMA_FIELDS: dict[str, Any] = {
    "activation_func": {"_target_": "megatron.core.activations.fast_gelu", "_call_": False},
    "layernorm_zero_centered_gamma": True,
    "position_embedding_type": "rope",
    "is_vision_language": False,
}
GEMMA2_FIELDS = GEMMA_FIELDS | {
    "query_pre_attn_scalar": 8, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "window_size": [23, 0],
    "window_attn_skip_freq": None, "qk_layernorm": False, "softmax_scale": None, "rotary_base": 10000,
}  # fmt: skip
GEMMA3_FIELDS = GEMMA_FIELDS | {
    "softmax_scale": 8**-0.5, "window_size": 24, "interleaved_attn_pattern": [5, 1], "rotary_base": [10000, 1000000],
    "rope_scaling_factor": 8.0, "window_attn_skip_freq": None, "qk_layernorm": True,
}  # fmt: skip
FAMILIES = {
    "glm": (GLM, "megatron.bridge.models.gpt_provider.GPTModelProvider"),
    "deepseek": (DEEPSEEK, "megatron.bridge.models.mla_provider.MLAModelProvider"),
    "deepseek-yarn": (YARN, "megatron.bridge.models.deepseek.deepseek_provider.DeepSeekV3ModelProvider"),
    "gpt-oss": (GPT_OSS, "megatron.bridge.models.gpt_provider.GPTModelProvider"),
    "gpt-oss-2025": (GPT_OSS, "megatron.bridge.models.gpt_oss.gpt_oss_provider.GPTOSSProvider20B"),
    "gemma2": (GEMMA2, "megatron.bridge.models.gemma.gemma2_provider.Gemma2ModelProvider"),
    "gemma3": (GEMMA3, "megatron.bridge.models.gemma.gemma3_provider.Gemma3ModelProvider1B"),
    "without-prediction": (dataclasses.replace(GLM, mtp_num_layers=0), "megatron.bridge.models.gpt_provider.GPTModelProvider"),
}
# TransformerConfig's names of arguments, and what Megatron-Bridge writes beside its fields.
NAMES = {"norm_epsilon": "layernorm_epsilon", "num_experts": "num_moe_experts"}


def fields(architecture: Architecture, target: str) -> dict[str, Any]:
    """All plain fields of the configuration, defaults included, as Megatron-Bridge writes them."""
    configuration = MLATransformerConfig if architecture.latent_attention else TransformerConfig
    defaults = {field.name: field.default for field in dataclasses.fields(configuration)}
    plain = {name: value for name, value in defaults.items() if isinstance(value, bool | int | float | str | None)}
    arguments = {NAMES.get(name, name): value for name, value in to_arguments(architecture).items()}
    known = {name: list(value) if isinstance(value, tuple) else value for name, value in arguments.items() if name in defaults}
    is_quick = arguments.get("quick_geglu")
    activation = "megatron.core.fusions.fused_bias_geglu.quick_gelu" if is_quick else "torch.nn.functional.silu"
    return {
        **plain,
        **known,
        "_target_": target,
        "activation_func": {"_target_": activation, "_call_": False},
        "gated_linear_unit": True,
        "position_embedding_type": arguments["position_embedding_type"],
        **{name: value for name, value in arguments.items() if name.startswith("yarn_")},
        "rotary_base": int(architecture.rotary_base),
        "rotary_percent": architecture.rotary_percent,
        "share_embeddings_and_output_weights": architecture.tie_embeddings,
        "vocab_size": architecture.vocab_size,
        "seq_length": architecture.max_position_embeddings,
        "num_query_groups": architecture.num_query_groups,
        **(GEMMA2_FIELDS if architecture == GEMMA2 else GEMMA3_FIELDS if architecture == GEMMA3 else {}),
    }


@pytest.mark.parametrize("name", FAMILIES)
def test_is_converted_as_our_own(name: str, write_model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    architecture, target = FAMILIES[name]
    source = write_model(tmp_path / "source", architecture)
    conversion.convert(Request(str(source), "megatron-dist", str(tmp_path / "own")))
    run = tmp_path / "bridge"
    checkpoint = Path(shutil.copytree(tmp_path / "own" / "release", run / "iter_0000005"))
    (run / "latest_checkpointed_iteration.txt").write_text("5")
    for file in ("run.json", "checksums.json", "common.pt"):
        (checkpoint / file).unlink(missing_ok=True)
    (checkpoint / "run_config.yaml").write_text(yaml.safe_dump({"model": fields(architecture, target)}))
    capsys.readouterr()
    conversion.convert(Request(str(run), "hf", str(tmp_path / "found")))
    assert "not known here" not in capsys.readouterr().err
    conversion.convert(Request(str(tmp_path / "own"), "hf", str(tmp_path / "expected")))
    found, expected = (load_file(tmp_path / place / "model.safetensors") for place in ("found", "expected"))
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, found[key]) for key, tensor in expected.items())
    assert any("enorm" in key for key in found) == bool(architecture.mtp_num_layers)
    for place in ("found", "expected"):
        (tmp_path / place / "lt-convert.json").unlink()
    assert (tmp_path / "found" / "config.json").read_text() == (tmp_path / "expected" / "config.json").read_text()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gemma3", {"interleaved_attn_pattern": [5, 2]}, "a pattern of 5 and 2"),
        ("gemma3", {"softmax_scale": 0.3}, "divided by the root of 11"),
        ("gemma3", {"is_vision_language": True}, "is_vision_language is True"),
        ("gemma3", {"rotary_base": 10000}, "does not describe a model of Gemma"),
        ("gemma2", {"qk_layernorm": True}, "qk_layernorm is True"),
        ("gemma2", {"window_size": None}, "does not describe a model of Gemma"),
        ("gemma2", {"activation_func": {"_target_": "torch.nn.functional.silu"}}, "activation_func is"),
        ("gemma2", {"layernorm_zero_centered_gamma": False}, "layernorm_zero_centered_gamma is False"),
    ],
)
def test_fields_that_gemma_has_with_one_value(name: str, change: dict[str, Any], message: str) -> None:
    architecture, target = FAMILIES[name]
    with pytest.raises(BadData, match=message):
        provider_gemma.arguments(fields(architecture, target) | change, "run_config.yaml")
