"""TorchTitan's DeepSeek-V3 and gpt-oss: the architecture of an import, and what lt-train computes otherwise."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from importers.python.test_recipes import SAMPLES, options, refusal

from lt_shared.models.architecture import Architecture, LatentAttention
from lt_shared.models.rope_scaling import YarnScaling
from lt_train.importers import imported_run, source

TITAN = (SAMPLES / "titan_experts.txt").read_text()
FRAME: dict[str, Any] = {
    "family": "llama",
    "num_layers": 4,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "tie_embeddings": False,
    "num_experts": 8,
    "moe_aux_loss_coeff": 0.0,
}
DEEPSEEK = Architecture(
    name="custom",
    **FRAME,
    num_query_groups=4,
    ffn_hidden_size=352,
    kv_channels=0,
    rotary_base=10000.0,
    # TorchTitan's softmax scale has (0.1 * 0.7 * log(40) + 1)^2: that of `mscale_all_dim`.
    rope_scaling=YarnScaling(40.0, 1024, mscale=0.7, mscale_all_dim=0.7),
    latent_attention=LatentAttention(48, kv_lora_rank=32, qk_head_dim=32, qk_pos_emb_head_dim=16, v_head_dim=24),
    moe_router_topk=4,
    moe_ffn_hidden_size=64,
    moe_first_dense_layers=1,
    moe_shared_expert_intermediate_size=128,
    moe_router_score_function="sigmoid",
    moe_router_enable_expert_bias=True,
    moe_router_num_groups=4,
    moe_router_group_topk=2,
    moe_router_topk_scaling_factor=2.5,
)
GPT_OSS = Architecture(
    name="gpt-oss-20b",
    **FRAME,
    num_query_groups=2,
    ffn_hidden_size=96,
    kv_channels=32,
    rotary_base=150000.0,
    rope_scaling=YarnScaling(32, 128, truncate=False),
    moe_router_topk=2,
    sliding_window=16,
    window_attn_skip_freq=2,
    attention_sinks=True,
    add_bias_linear=True,
    activation="clamped_swiglu",
)


def written(text: str, function: str, directory: Path) -> str:
    file = directory / "registry.py"
    file.write_text(text)
    return f"{file}:{function}"


def replaced(old: str, new: str) -> str:
    assert old in TITAN, old
    return TITAN.replace(old, new)


@pytest.mark.parametrize(("function", "expected"), [("deepseek", DEEPSEEK), ("gpt_oss", GPT_OSS)])
def test_the_architecture_of_an_import(function: str, expected: Architecture, tmp_path: Path) -> None:
    config = imported_run.resolve(source.translate_file(written(TITAN, function, tmp_path)))
    assert dataclasses.replace(config.architecture, name=expected.name) == expected
    assert config.routing.load_balancing == "none"
    assert (config.data.reset_position_ids, config.data.reset_attention_mask) == (True, True)
    assert config.optimization.router_bias_update_rate == (2e-3 if function == "deepseek" else 1e-3)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('scaling="yarn"', 'scaling="none"', {"rope_scaling": None}),
        ("rope_factor=40.0", "rope_factor=1.0", {"rope_scaling": None}),
        ("load_balance_coeff=2e-3", "load_balance_coeff=None", {"moe_router_enable_expert_bias": False}),
        ("shared_experts=mlp(2 * 64)", "shared_experts=None", {"moe_shared_expert_intermediate_size": None}),
        ("num_expert_groups=4, num_limited", "num_expert_groups=None, num_limited", {"moe_router_num_groups": None}),
        # DeepSeek-V2: the softmax over all experts, without biases.
        (
            "load_balance_coeff=2e-3, shared_experts=mlp(2 * 64),\n        router=TokenChoiceTopKRouter.Config(\n            "
            'num_experts=8, gate=linear(DIM, 8), top_k=4, score_func="sigmoid", route_norm=True',
            "load_balance_coeff=None, shared_experts=mlp(2 * 64),\n        router=TokenChoiceTopKRouter.Config(\n            "
            'num_experts=8, gate=linear(DIM, 8), top_k=4, score_func="softmax", route_norm=False',
            {"moe_router_score_function": "softmax", "moe_router_pre_softmax": True, "moe_router_group_topk": 2},
        ),
    ],
)
def test_fields_that_change_the_architecture(old: str, new: str, expected: dict[str, Any], tmp_path: Path) -> None:
    config = imported_run.resolve(source.translate_file(written(replaced(old, new), "deepseek", tmp_path)))
    assert {name: getattr(config.architecture, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("function", "old", "new", "part"),
    [
        ("deepseek", 'score_func="sigmoid"', 'score_func="softmax"', "layers.1.moe.load_balance_coeff"),
        ("gpt_oss", "load_balance_coeff=None", "load_balance_coeff=1e-3", "layers.0.moe.load_balance_coeff"),
        ("deepseek", "route_norm=True", "route_norm=False", "layers.1.moe.router.route_norm"),
        ("deepseek", "num_limited_groups=2", "num_limited_groups=4", "layers.1.moe.router.num_limited_groups"),
        (
            "deepseek",
            "route_scale=2.5",
            "route_scale=2.5, _debug_force_load_balance=True",
            "layers.1.moe.router._debug_force_load",
        ),
        (
            "deepseek",
            "load_balance_coeff=2e-3",
            "load_balance_coeff=2e-3, score_before_experts=True",
            "layers.1.moe.score_before",
        ),
        (
            "deepseek",
            "AllToAllTokenDispatcher.Config(num_experts=8, top_k=4",
            "HybridEPTokenDispatcher.Config(num_experts=8, top_k=4, non_blocking_capacity_factor=0.5",
            "layers.1.moe.routed_experts.token_dispatcher.non_blocking_capacity_factor",
        ),
        ("deepseek", "gate=linear(DIM, 8)", "gate=linear(DIM, 8, bias=True)", "layers.1.moe.router.gate.bias"),
        ("deepseek", "mtp_layers=[]", "mtp_layers=[latent_layer(3)]", "mtp_layers"),
        (
            "deepseek",
            "max_context_length=4096, theta=10000.0",
            "max_seq_len=4096, theta=10000.0",
            "layers.0.attention.rope.max_seq",
        ),
        ("deepseek", "number < 1", "number % 2 == 0", "layers.2"),
        ("deepseek", "ffn_norm=norm(DIM)", "ffn_norm=norm(DIM, 1e-6)", "layers.0.norm_eps"),
        ("gpt_oss", "number % 2 == 0", "number % 2 == 1", "layers.0.attention.sliding_window_size"),
        ("gpt_oss", "16 if number % 2 == 0", "16 if number == 0", "layers.2.attention.sliding_window_size"),
        ("gpt_oss", "window - 1, 0", "window, 0", "layers.0.attention.inner_attention.window_size"),
        ("gpt_oss", "16 if number % 2 == 0", "16 + number if number % 2 == 0", "layers.2.attention.sliding_window_size"),
        ("gpt_oss", "swiglu_limit=7.0", "swiglu_limit=9.0", "layers.0.moe.routed_experts.inner_experts.swiglu_limit"),
        ("gpt_oss", "gate=linear(DIM, 8, bias=True)", "gate=linear(DIM, 8)", "layers.0.moe.router.gate.bias"),
        ("gpt_oss", 'linear(DIM, 512), "enable', 'linear(DIM, 512, bias=True), "enable', "lm_head.bias"),
        ("gpt_oss", '"enable_weight_tying": False', '"enable_weight_tying": True', "enable_weight_tying"),
    ],
)
def test_what_lt_train_computes_otherwise_is_named(function: str, old: str, new: str, part: str, tmp_path: Path) -> None:
    refused = refusal(written(replaced(old, new), function, tmp_path))
    assert f"another model would result, without model_spec.model.{part}" in refused


@pytest.mark.parametrize(
    ("function", "field", "part"),
    [
        ("deepseek", "load_balance_coeff=2e-3, ", "layers.1.moe.load_balance_coeff"),
        ("deepseek", ", route_scale=2.5", "layers.1.moe.router.route_scale"),
        ("deepseek", "mscale=0.7, ", "layers.0.attention.mscale"),
        ("deepseek", " original_seq_len=1024,", "layers.0.attention.rope.original_seq_len"),
        ("gpt_oss", ", swiglu_limit=7.0", "layers.0.moe.routed_experts.inner_experts.swiglu_limit"),
    ],
)
def test_a_default_that_the_file_does_not_show_is_no_value(function: str, field: str, part: str, tmp_path: Path) -> None:
    """Another default than lt-train's would be another run: 1e-3 for the balancing biases."""
    refused = refusal(written(replaced(field, ""), function, tmp_path))
    assert "only a run of the configuration knows the value" in refused
    assert part in refused


def test_the_epsilon_of_latents_is_told(tmp_path: Path) -> None:
    translation = source.translate_file(written(TITAN, "deepseek", tmp_path))
    (entry,) = (entry for entry in translation.dropped if entry.key == "model.latent_norm_eps")
    assert (entry.value, entry.effect.name) == (1e-5, "RESULT")


def test_experts_on_several_ranks_are_not_sharded_by_fsdp2(tmp_path: Path) -> None:
    text = f"from torchtitan.config import ParallelismConfig\n{TITAN}"
    text = text.replace(
        "        training=Tr", "        parallelism=ParallelismConfig(expert_parallel_degree=2),\n        training=Tr"
    )
    found = options(written(text, "deepseek", tmp_path))
    assert found["expert-model-parallel-size"] == 2
    assert found["use-distributed-optimizer"]
    assert "use-torch-fsdp2" not in found


@pytest.mark.parametrize(("kind", "is_told"), [("float32", True), ("bfloat16", False)])
def test_experts_in_bfloat16_beside_float32_layers_are_told(kind: str, is_told: bool, tmp_path: Path) -> None:
    text = replaced("steps=100", f"steps=100, mixed_precision_param='{kind}'")
    dropped = source.translate_file(written(text, "gpt_oss", tmp_path)).dropped
    assert any(entry.key == "model.experts" and entry.effect.name == "RESULT" for entry in dropped) is is_told
