"""Classify the effect of dropping a key: another model, another run, another result, another speed, or nothing.

A key that neither the tables in `upstream` nor the patterns here name counts as changing the run. A key below `model`, or an
option of a Megatron command, changes the model if its name is a part of the network. Values that switch a part off lose nothing.
"""

import enum
import re
from typing import Any


class Effect(enum.StrEnum):
    """The effect of dropping a key, from the worst to none. MODEL and RUN refuse the import."""

    MODEL = "the model"
    # Weights, data, schedule, start, evaluation, or when the run stops.
    RUN = "the run"
    # lt-train decides it in its own way, as the reason says: another rounding, or other numbers of the same distribution.
    RESULT = "the result"
    SPEED = "speed"
    NONE = "nothing"


# Values that switch a part off, or select the behavior that lt-train always has.
NEUTRAL = {
    "activation": ("gelu",),
    "attention_type": ("multihead",),
    "attention_scale": (1, 1.0),
    "decoder_type": ("",),
    "embedding_multiplier": (1, 1.0),
    "model_type": ("gpt",),
    "moe_layer_freq": (1, "1", "[1]"),
    "moe_load_balancing": ("aux_loss",),
    "mtp_num_layers": (0,),
    "normalize_attention_scores": (True,),
    "num_moe_experts": (1,),
    "rotary_percentage": (1, 1.0),
    "transformer_block_type": ("pre_ln",),
    "window_size": ([-1, -1], "-1 -1"),
}
OFF: tuple[Any, ...] = (None, False, 0, 0.0, "", "null", "None", "none", "False", "false", [], {})

MODEL = re.compile(
    r"(num|n)_(layers|heads|attention_heads|query_groups|kv_heads|key_value_heads|experts|moe_experts|local_experts|hidden_layers)"
    r"|.*hidden_size|.*ffn_.*size|intermediate_size|.*layer(s)?_(freq|pattern)|hybrid_.*|is_hybrid_model|mamba_.*|dim|inter_dim"
    r"|(add_|has_)?(qkv_)?bias(_linear)?|add_bias_linear|disable_bias_linear|add_qkv_bias|qkv_linear_bias|tokens_head_bias"
    r"|activation(_func)?|.*swiglu|.*geglu|squared_relu|openai_gelu|onnx_safe|gated_linear_unit|hidden_act|quick_geglu"
    r"|normalization|.*norm_type|qk_layernorm|.*layernorm_1p|.*zero_centered_gamma|transformer_block_type|apply_residual.*post.*"
    r"|position_embedding_type|(rotary|rope|yarn)_.*|.*rope_scaling.*|.*rotary_scaling.*|scale_positional_embedding|seq_len_interp.*"
    r"|use_rope_scaling|no_rope_.*|use_rotary_position_embeddings|alibi|headscale|(attn|attention)_.*scale.*|.*softcapping|.*softcap"
    r"|query_pre_attn_scalar|softmax_scale|softmax_type|apply_embedding_scaling|.*_multiplier|normalize_embeddings"
    r"|window_size|sliding_window.*|window_attn.*|attention_type|multiquery.*|group_query_attention|multi_latent_attention"
    r"|(q|kv|qk|v)_(lora_rank|head_dim|pos_emb.*|nope.*|rope.*)|kv_channels|head_dim|parallel_attention|new_decoder_architecture"
    r"|moe_(router_topk|ffn_.*|shared_.*|layer_.*|router_score_function|router_num_groups|router_group_topk|router_enable.*"
    r"|router_topk_scaling_factor|apply_probs.*|router_pre_softmax|latent_size)|num_experts_per_tok|mtp_.*"
    r"|share_embeddings_and_output_weights|tie_word_embeddings|untie_.*|use_emha|vocab_size|override_vocab_size|max_position.*"
    r"|encoder_num_layers|decoder_num_layers|retro_.*|hyena.*|megatron_legacy|bert_.*|vision_.*|adapter.*"
)
MODEL_SECTIONS = re.compile(
    r"(recipes\.)?model\.(encoder|decoder|retro|hyena|mcore_customization_config|vision.*|mm_cfg|unet_config|first_stage_config|"
    r"cond_stage_config|language_model|moe|rope_scaling|mixed_attention|mamba)\."
)
JOB_KEYS = re.compile(r"(recipes\.)?(run|git|cluster|hydra|env_vars|job|comm|launcher [^ ]*)(\..*)?")


def is_of_model(name: str) -> bool:
    """Whether a key with this name configures the network."""
    return MODEL.fullmatch(name) is not None


def effect_of(key: str, value: Any) -> Effect:
    """Return the effect of dropping a key that no table names."""
    name = key.rpartition(".")[2].lower().replace("-", "_")
    of_model = key.startswith(("model.", "recipes.model.")) or "." not in key
    if value is None or value in NEUTRAL.get(name, ()) or JOB_KEYS.fullmatch(key):
        return Effect.NONE
    if (of_model and MODEL.fullmatch(name)) or MODEL_SECTIONS.match(key):
        return Effect.NONE if value in OFF else Effect.MODEL
    return Effect.RUN
