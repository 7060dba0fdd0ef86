"""Every setting of transformers' configurations changes the architecture, or is refused, or is known to change no logits.

For 56 types, each setting was changed, and a random model of transformers 5.24 with it was compared with the model of the
architecture that was read: 2026-12-01, 2,976 changes with the same logits, 1,488 refused. Mistral 4 and Falcon-H1 were not among
them. `WITHOUT_EFFECT` has the settings that changed nothing.
"""

import copy
import json
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from lt_shared.console import BadConfig
from lt_shared.models import huggingface
from lt_shared.models.presets import PRESETS

TINY = {huggingface.model_type(model): model for name, model in PRESETS.items() if name.startswith("tiny")}
# Of any type: what matters to training, generation, parallelism or reports alone.
_NOWHERE = """
    architectures dtype torch_dtype transformers_version _name_or_path use_cache return_dict output_hidden_states
    output_attentions id2label label2id problem_type chunk_size_feed_forward is_encoder_decoder bos_token_id eos_token_id
    pad_token_id sep_token_id eod_token_id model_type initializer_range attention_dropout output_router_logits
    router_aux_loss_coef aux_loss_alpha pretraining_tp num_logits_to_keep
    """
NOWHERE = frozenset(_NOWHERE.split())
WITHOUT_EFFECT = """
_sliding_window_pattern: gemma3_text
attn_pdrop: gpt2
block_ffn_dim_multiplier: lfm2
block_multiple_of: lfm2
chunk_size: nemotron_h
embd_pdrop: gpt2 phi3
embedding_dropout: starcoder2
expand: nemotron_h
first_k_dense_replace: deepseek_v32 glm4_moe_lite glm_moe_dsa mistral4
full_attn_idxs: lfm2
head_dim: deepseek_v2 deepseek_v3 deepseek_v32 glm_moe_dsa kimi_linear mistral4
hidden_act: gemma2 gemma3_text
hidden_activation: gemma
hidden_dropout: nemotron_h
indexer_types: glm_moe_dsa
intermediate_size: granitemoehybrid mistral4 nemotron_h qwen2_moe qwen3_5_moe_text qwen3_moe qwen3_next
linear_a_log_max: olmo_hybrid
linear_a_log_min: olmo_hybrid
linear_attn_config.kda_layers: kimi_linear
linear_dt_init_floor: olmo_hybrid
linear_dt_max: olmo_hybrid
linear_dt_min: olmo_hybrid
mamba_chunk_size: bamba falcon_h1 granitemoehybrid
mamba_expand: falcon_h1
mamba_ssm_cache_dtype: nemotron_h
max_window_layers: dots1 qwen2 qwen2_moe qwen3
moe_layer_freq: mistral4
moe_shared_expert_overlap: nemotron_h
mtp_layers_block_type: nemotron_h
n_ctx: gpt2
n_group: deepseek_v2
no_rope_layer_interval: smollm3
norm_topk_prob: qwen3_5_moe_text
num_experts_per_tok: granitemoehybrid
num_local_experts: granitemoehybrid
num_nextn_predict_layers: dots1 glm4_moe_lite kimi_linear nemotron_h
position_embedding_type: granitemoehybrid
qk_head_dim: deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa kimi_linear mistral4
reorder_and_upcast_attn: gpt2
rescale_prenorm_residual: nemotron_h
resid_pdrop: gpt2 phi3
residual_dropout: seed_oss starcoder2
residual_in_fp32: nemotron_h
rms_norm_eps: cohere cohere2 lfm2 lfm2_moe nemotron olmo starcoder2
rope_parameters.original_max_position_embeddings: phi3
rope_parameters.rope_type: olmo_hybrid
rope_parameters.type: phi3
rotary_dim: minimax_m2
router_jitter_noise: minimax_m2 mixtral
shared_intermediate_size: minimax_m2
sliding_window: dots1 qwen2 qwen2_moe qwen3 qwen3_moe smollm3
sliding_window_pattern: cohere2 exaone4 gemma3_text
summary_activation: gpt2
summary_first_dropout: gpt2
summary_proj_to_labels: gpt2
summary_type: gpt2
summary_use_proj: gpt2
time_step_floor: nemotron_h
time_step_limit: nemotron_h
time_step_max: nemotron_h
topk_group: deepseek_v2
use_mamba_kernels: nemotron_h
z_loss_coefficient: bamba
"""
KNOWN = {tuple(line.split(": ")) for line in WITHOUT_EFFECT.strip().splitlines()}


def settings(config: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for field, value in config.items():
        if isinstance(value, dict):
            yield from (((field, inner), inner_value) for inner, inner_value in value.items())
        else:
            yield (field,), value


def others(value: Any) -> list[Any]:
    """Other values of the same type."""
    match value:
        case bool():
            return [not value]
        case int() | float():
            return [2 * value, value + (1 if isinstance(value, int) else 0.25)]
        case None:
            return [True, 2]
        case str():
            return [f"{value}x"]
        case list():
            return [other for other in (value[::-1], value[:-1]) if other != value]
    return []


def changed(config: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    result = copy.deepcopy(config)
    place = result
    for field in path[:-1]:
        place = place[field]
    place[path[-1]] = value
    return result


@pytest.mark.skipif(
    tuple(map(int, metadata.version("transformers").split(".")[:2])) < (5, 20),
    reason="transformers 4 has settings of generation, too",
)
@pytest.mark.parametrize("kind", sorted(kind for kind in TINY if kind))
def test_no_setting_is_passed_over(kind: str) -> None:
    written = huggingface.to_config(TINY[kind], "float32")
    config = json.loads(json.dumps(CONFIG_MAPPING[kind](**written).to_dict()))
    base = huggingface.from_config(config, "model")
    unread = set()
    for path, value in settings(config):
        for other in others(value):
            try:
                architecture = huggingface.from_config(changed(config, path, other), "model")
            except BadConfig:
                continue
            if architecture == base and path[0] not in NOWHERE:
                unread.add(".".join(path))
    known = {field for field, kinds in KNOWN if kind in kinds.split()}
    assert unread <= known, (
        f"{sorted(unread - known)} of {kind} are read nowhere: refuse them, or find that they change no logits"
    )
