"""Mixtures of small experts and latent attention in others' words: the published models come out, to the last field."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from layouts import assembled

from lt_shared.console import BadConfig
from lt_shared.models import presets
from lt_shared.models.architecture import Architecture
from lt_train.config.settings.model.experts import layer_frequency
from lt_train.importers import megatron_bridge, megatron_lm
from lt_train.importers.effects import Effect
from lt_train.importers.imported_run import resolve
from lt_train.importers.ledger import Translation, flatten

STYLE = (
    *("--position-embedding-type", "rope", "--normalization", "RMSNorm", "--swiglu", "--disable-bias-linear"),
    *("--untie-embeddings-and-output-weights", "--norm-epsilon", "1e-6", "--seq-length", "4096", "--train-iters", "10"),
    *("--micro-batch-size", "1", "--global-batch-size", "8", "--lr", "1e-4", "--transformer-impl", "transformer_engine"),
)
RUN = ("--mock-data", "--train-iters", "1")
# The sizes of deepseek-ai/DeepSeek-V2-Lite's config.json, as megatron-core names them.
V2_LITE = (
    *("--num-layers", "27", "--hidden-size", "2048", "--num-attention-heads", "16", "--ffn-hidden-size", "10944"),
    *("--vocab-size", "102400", "--max-position-embeddings", "163840", "--kv-channels", "16"),
    *(
        "--multi-latent-attention",
        "--qk-layernorm",
        "--kv-lora-rank",
        "512",
        "--v-head-dim",
        "128",
        "--rotary-scaling-factor",
        "40",
    ),
    *("--mscale", "0.707", "--mscale-all-dim", "0.707"),
    *("--num-experts", "64", "--moe-layer-freq", "([0]*1+[1]*26)", "--moe-ffn-hidden-size", "1408", "--moe-router-topk", "6"),
    *("--moe-shared-expert-intermediate-size", "2816", "--moe-router-pre-softmax", "--moe-aux-loss-coeff", "0.001"),
)
# zai-org/GLM-4.5-Air's.
GLM_AIR = (
    *("--num-layers", "46", "--hidden-size", "4096", "--num-attention-heads", "96", "--ffn-hidden-size", "10944"),
    *("--group-query-attention", "--num-query-groups", "8", "--kv-channels", "128", "--add-qkv-bias"),
    *("--vocab-size", "151552", "--max-position-embeddings", "131072", "--rotary-base", "1000000", "--rotary-percent", "0.5"),
    *("--num-experts", "128", "--moe-layer-freq", "[0]*1 + [1]*45", "--moe-ffn-hidden-size", "1408", "--moe-router-topk", "8"),
    *("--moe-shared-expert-intermediate-size", "1408", "--moe-router-score-function", "sigmoid"),
    *("--moe-router-enable-expert-bias", "--moe-router-topk-scaling-factor", "1.0", "--norm-epsilon", "1e-5"),
    *("--moe-router-num-groups", "1", "--moe-router-group-topk", "1", "--mtp-num-layers", "1", "--moe-aux-loss-coeff", "0.0001"),
)
# As a checkpoint of deepseek-ai/DeepSeek-V3 by Megatron-Bridge has them.
V3: dict[str, Any] = {
    "_target_": "megatron.bridge.training.config.ConfigContainer",
    "model": {
        "_target_": "megatron.bridge.models.deepseek.deepseek_provider.DeepSeekV3ModelProvider",
        "activation_func": {"_call_": False, "_target_": "torch.nn.functional.silu"},
        "gated_linear_unit": True,
        "add_bias_linear": False,
        "normalization": "RMSNorm",
        "position_embedding_type": "rope",
        "share_embeddings_and_output_weights": False,
        "layernorm_epsilon": 1e-06,
        "num_layers": 61,
        "hidden_size": 7168,
        "ffn_hidden_size": 18432,
        "num_attention_heads": 128,
        "num_query_groups": 128,
        "kv_channels": 128,
        "vocab_size": 129280,
        "seq_length": 163840,
        "multi_latent_attention": True,
        "qk_layernorm": True,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_head_dim": 128,
        "qk_pos_emb_head_dim": 64,
        "v_head_dim": 128,
        "rope_type": "yarn",
        "rotary_base": 10000.0,
        "rotary_scaling_factor": 40,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "num_moe_experts": 256,
        "moe_layer_freq": [0] * 3 + [1] * 58,
        "moe_ffn_hidden_size": 2048,
        "moe_router_topk": 8,
        "moe_shared_expert_intermediate_size": 2048,
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_pre_softmax": True,
        "moe_router_num_groups": 8,
        "moe_router_group_topk": 4,
        "moe_router_topk_scaling_factor": 2.5,
        "moe_router_bias_update_rate": 0.001,
        "moe_aux_loss_coeff": 0.0001,
        "moe_grouped_gemm": True,
        "mtp_num_layers": 1,
    },
    "train": {"micro_batch_size": 1, "global_batch_size": 8, "train_iters": 10},
}


def from_words(*words: str) -> Translation:
    return megatron_lm.translate(["pretrain_gpt.py", *STYLE, *words])


def from_bridge(**changes: Any) -> Translation:
    return megatron_bridge.translate(flatten(V3 | {"model": V3["model"] | changes}))


def same_fields(found: Architecture, name: str) -> None:
    """But for the initial weights, which checkpoints have no need of."""
    preset = presets.preset(name)
    scored = {"moe_router_group_score_topk": preset.moe_router_group_score_topk} if found.moe_router_num_groups else {}
    expected = dataclasses.replace(preset, name=found.name, init_std=found.init_std, model_type=found.model_type)
    assert dataclasses.replace(found, **scored) == expected


def lost(translation: Translation) -> list[str]:
    return [entry.key for entry in translation.lost(Effect.MODEL)]


@pytest.mark.parametrize(
    ("translation", "preset"),
    [
        pytest.param(from_words(*V2_LITE), "deepseek-v2-lite", id="V2-Lite"),
        pytest.param(from_bridge(), "deepseek-v3", id="V3"),
    ],
)
def test_the_published_model_comes_out(translation: Translation, preset: str) -> None:
    assert lost(translation) == []
    same_fields(resolve(translation).architecture, preset)


def test_a_mixture_without_latent_attention() -> None:
    translation = from_words(*GLM_AIR)
    found = resolve(translation).architecture
    assert lost(translation) == []
    assert (found.moe_first_dense_layers, found.latent_attention) == (1, None)
    assert found.parameters() == presets.preset("glm-4.5-air").parameters()


def test_sizes_of_latents_mean_nothing_without_them() -> None:
    """Some trainers print all arguments of Megatron-LM with their defaults."""
    found = from_words(*GLM_AIR, "--kv-lora-rank", "32", "--qk-head-dim", "128", "--qk-pos-emb-head-dim", "64")
    assert lost(found) == []
    assert "kv_lora_rank" not in found.options


def test_latents_without_norms_are_told() -> None:
    assert lost(from_words(*(word for word in V2_LITE if word != "--qk-layernorm"))) == ["qk_layernorm"]
    assert lost(from_bridge(qk_layernorm=False)) == ["model.qk_layernorm"]


@pytest.mark.parametrize("change", [("--rotary-scaling-factor", "1"), ("--rope-type", "rope")])
def test_positions_that_are_not_scaled(change: Sequence[str]) -> None:
    found = resolve(from_words(*V2_LITE, *change)).architecture
    assert found.rope_scaling is None


def test_a_factor_of_scores_beside_plain_rope_is_told() -> None:
    assert lost(from_words(*V2_LITE, "--rope-type", "rope")) == ["mscale_all_dim"]
    assert lost(from_words(*V2_LITE, "--rope-type", "rope", "--mscale-all-dim", "0")) == []


def test_what_is_no_number_is_told() -> None:
    assert "mscale_all_dim" in lost(from_words(*V2_LITE, "--rope-type", "rope", "--mscale-all-dim", "much"))
    assert "model.rotary_scaling_factor" in lost(from_bridge(rotary_scaling_factor="forty"))


def test_a_type_of_positions_that_is_not_set_is_yarn() -> None:
    same_fields(resolve(from_bridge(rope_type=None)).architecture, "deepseek-v3")


def test_options_change_a_preset() -> None:
    from layouts import assembled

    sizes = (
        "--model",
        "tiny-deepseek-v3",
        "--q-lora-rank",
        "24",
        "--moe-layer-freq",
        "[0,0,1,1]",
        "--mock-data",
        "--train-iters",
        "1",
    )
    found = assembled(sizes).architecture
    assert found.latent_attention is not None
    assert (found.latent_attention.q_lora_rank, found.latent_attention.kv_lora_rank, found.moe_first_dense_layers) == (24, 32, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--model", "tiny", "--kv-lora-rank", "8"), "--kv-lora-rank for a model without latent attention"),
        (("--model", "tiny", "--moe-router-num-groups", "2"), "--moe-router-num-groups for a model without experts"),
        (("--model", "tiny-deepseek-v3", "--kv-channels", "8"), "latent attention has a key for each"),
        (("--model", "tiny-deepseek-v3", "--v-head-dim", "8", "--kv-channels", "8"), "--kv-channels beside latent attention"),
        (("--model", "tiny-deepseek-v3", "--moe-layer-freq", "2"), "only first layers without experts are known here"),
        (("--model", "tiny-deepseek-v3", "--moe-layer-freq", "[0]+[1]*4"), "of 5 layers, and the model has 4"),
        (
            ("--model", "tiny-qwen3-moe", "--moe-router-enable-expert-bias", "--moe-router-pre-softmax"),
            "biases that balance experts with a softmax over all experts",
        ),
    ],
)
def test_contradictions_are_refused(options: Sequence[str], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        assembled([*options, *RUN])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("([0]*3+[1]*2)", [0, 0, 0, 1, 1]),
        ("[0]+[1]*2", [0, 1, 1]),
        ("[0, 1, 1]", [0, 1, 1]),
        ("([1]*2+[0])*2", [1, 1, 0, 1, 1, 0]),
    ],
)
def test_lists_of_layers_as_python_writes_them(text: str, value: Any) -> None:
    assert layer_frequency(text) == value == eval(text)


@pytest.mark.parametrize("text", ["", "0", "[2]", "-1", "[1]*99999999", "__import__('os')", "[[1]]", "1.5", "[1]*[1]", "(" * 999])
def test_what_is_no_such_list_is_refused(text: str) -> None:
    with pytest.raises(BadConfig, match="neither a number nor a list"):
        layer_frequency(text)


@pytest.mark.parametrize("kind", ["aux_loss", "seq_aux_loss", "none"])
def test_balancing_that_megatron_computes_alike_is_carried_over(kind: str) -> None:
    translation = from_words(*V2_LITE, "--moe-router-load-balancing-type", kind, "--moe-z-loss-coeff", "1e-3")
    assert translation.options["moe_router_load_balancing_type"] == kind
    assert translation.options["moe_z_loss_coeff"] == 1e-3


def test_a_global_loss_whose_weight_depends_on_the_ranks_is_refused() -> None:
    options = ("--moe-router-load-balancing-type", "global_aux_loss")
    assert [loss.key for loss in from_words(*V2_LITE, *options).lost(Effect.RUN)] == ["moe_router_load_balancing_type"]


def test_tokens_that_megatron_drops_by_position_are_told() -> None:
    options = (
        "--moe-expert-capacity-factor",
        "1.25",
        "--moe-token-drop-policy",
        "position",
        "--moe-pad-expert-input-to-capacity",
    )
    translation = from_words(*V2_LITE, *options)
    assert translation.options["moe_token_drop_policy"] == "position"
    assert "moe_token_drop_policy" in str(translation.lost(Effect.RESULT))
    assert not translation.lost(Effect.RUN)


PUBLISHED = {"model._target_": "megatron.bridge.models.gpt_provider.GPTModelProvider", "model.preset": "gemma2-2b"}


@pytest.mark.parametrize(
    ("change", "values"),
    [
        # Megatron-Bridge's own defaults, which Gemma 2's conversion replaces.
        ({"model.normalization": "LayerNorm"}, None),
        ({"model.add_bias_linear": True}, None),
        ({"model.gated_linear_unit": False}, None),
        ({"model.position_embedding_type": "learned_absolute"}, None),
        # Parts of the published model, switched off.
        ({"model.share_embeddings_and_output_weights": False}, None),
        ({"model.window_size": None}, None),
        ({"model.kv_channels": None}, None),
        ({"model.attn_logit_softcapping": 0.0}, None),
        # The MLP of the published model keeps its width.
        ({"model.hidden_size": 512}, {"hidden-size": 512}),
        ({"model.num_layers": 10, "model.qk_layernorm": True}, {"num-layers": 10, "qk-layernorm": True}),
        ({"model.apply_rope_fusion": False, "model.hidden_dropout": 0.1}, {"hidden-dropout": 0.1}),
    ],
)
def test_what_a_recipe_changes_in_a_published_model(change: dict[str, Any], values: dict[str, Any] | None) -> None:
    translation = megatron_bridge.translate({**PUBLISHED, **change})
    lost = {entry.key for entry in translation.lost(Effect.MODEL)}
    options = translation.record()["options"]
    assert "ffn-hidden-size" not in options
    if values is None:
        assert lost == set(change)
    else:
        assert (lost, {name: options.get(name) for name in values}) == (set(), values)


@pytest.mark.parametrize("change", [{"softmax_type": "vanilla"}, {"glu_linear_offset": 0.0}, {"moe_router_topk": 2}])
def test_defaults_of_megatron_are_none_of_gpt_oss(change: dict[str, Any]) -> None:
    changed = {f"model.{name}": value for name, value in change.items()}
    translation = megatron_bridge.translate({**PUBLISHED, "model.preset": "gpt-oss-20b", **changed})
    assert {entry.key for entry in translation.lost(Effect.MODEL)} == set(changed)


@pytest.mark.parametrize(("replaces", "vocabulary"), [(False, None), (True, 32000)])
def test_a_published_model_keeps_its_vocabulary_beside_a_tokenizer_without_words(replaces: bool, vocabulary: int | None) -> None:
    tokenizer = {"tokenizer_type": "NullTokenizer", "vocab_size": 32000, "use_tokenizer_vocab_size": replaces}
    values = {**PUBLISHED, "model.preset": "gpt-oss-20b", **{f"tokenizer.{name}": value for name, value in tokenizer.items()}}
    assert megatron_bridge.translate(values).record()["options"].get("vocab-size") == vocabulary
