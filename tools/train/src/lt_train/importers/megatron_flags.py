"""Classify options of Megatron-LM's command line by the effect of dropping them."""

import re
from collections.abc import Sequence

from lt_train.config.settings.layers import WITHOUT_EFFECT
from lt_train.importers.effects import NEUTRAL, OFF, Effect, is_of_model
from lt_train.importers.ledger import options
from lt_train.importers.upstream import megatron_forks
from lt_train.importers.upstream.megatron_options import ROWS
from lt_train.importers.upstream.rows import Row, is_default
from lt_train.importers.upstream.rows import options as upstream_options

MODEL = re.compile(
    r"multiple_of|hidden_dim_multiplier|language_model_type|patch_dim|img_[hw]|num_channels|wkv_.*|rwkv.*|peft_type|lora_.*"
    r"|squared_relu|openai_gelu|quick_geglu|multi_latent_attention|rotary_interleaved|is_hybrid_model|apply_residual.*|embed_layernorm"
    r"|attention_output_gate|use_mup|mup(_.*)?|experimental_attention_variant|dsa_.*|linear_(attention|conv|key|value|num)_.*|xielu"
    r"|xiprelup?|heterogeneous_.*|hetero_.*|enable_gpt_oss|enable_mhc_.*|mhc_.*|moe_shared_.*|moe_latent_size|moe_residual.*"
    r"|moe_use_residual|moe_layer_.*|moe_router_(pre_softmax|enable_expert_bias|score_function|topk_scaling_factor|.*group.*)"
    r"|qk_l2_norm|first_k_dense_replace|post_layer_norm|no_(attn|mlp|final)_layernorm|.*_multiplier|softmax_(type|scale)|activation_func.*|glu_linear_offset|alibi.*"
    r"|relative_attention_.*|mrope_section|window_attn_.*|no_rope_.*|rotary_.*|rope_.*|yarn_.*|original_max_position_embeddings"
    r"|mtp_.*|mscale.*|gdp_.*|mamba_.*|hybrid_.*|spec|retro_.*|bert_.*|vision_.*|mlp_type|expert_interval|sandwich.*|scattered_.*"
    r"|share_layers|num_unique_layers|num_shared_.*|use_bnb_optimizer_model|encoder_num_layers|decoder_num_layers|normalize_embeddings|use_emha"
)
# Values that select lt-train's behavior, so the option can be dropped.
NEUTRAL_VALUES: dict[str, tuple[str, ...]] = {
    **{key: tuple(map(str, values)) for key, values in NEUTRAL.items()},
    "DDP_impl": ("local", "torch"),
    "mlp_type": ("standard",),
    "moe_router_load_balancing_type": ("aux_loss",),
    "moe_router_score_function": ("softmax",),
    "moe_router_topk_scaling_factor": ("1", "1.0"),
    "expert_interval": ("1",),
    "expert_tensor_parallel_size": ("1",),
    "ds_sequence_parallel_size": ("1",),
    "moe_expert_parallel_size": ("1",),
    "rotary_seq_len_interpolation_factor": ("1",),
    "softmax_type": ("vanilla",),
    "rope_type": ("rope",),
    "spec": ("local",),
    "zero_stage": ("0",),
    "exit_signal": ("15", "SIGTERM", "10", "SIGUSR1"),
    "dataloader_type": ("single",),
}
# Options that name files, directories and reports. They differ between machines and do not change the run.
PATHS_AND_REPORTS = re.compile(
    r"(.*_)?data_path|.*_(path|dir)|save|split|config|tokenizer_.*|vocab_file|merge_file|wandb_.*|profile_ranks|log_.*|plain|verbose"
    r"|quiet|v|q|no_verify"
)
NOT_THERE = "lt-train has no such option"
DEFAULT = "Megatron-LM's default, as without it"


def loss_of_flag(key: str, words: Sequence[str]) -> Row:
    """Return the effect of dropping option `key`, with the reason. An option without `words` is a switch that is on."""
    value = " ".join(words)
    if value and value in NEUTRAL_VALUES.get(key, ()):
        return Row(Effect.NONE, "it says what holds in any case")
    kind, default = upstream_options("megatron_lm").get(key, ("", None))[:2]
    if kind in ("value", "list") and words and _is_default(words, default):
        return Row(Effect.NONE, DEFAULT)
    if key in ROWS:
        return ROWS[key]
    if key in megatron_forks.ROWS:
        return megatron_forks.ROWS[key]
    if MODEL.fullmatch(key) or is_of_model(key):
        # `none` is not neutral here: lt-train's default is learned position embeddings.
        is_off = words and value in OFF and key != "position_embedding_type"
        return Row(Effect.NONE if is_off else Effect.MODEL, NOT_THERE)
    return Row(Effect.RUN, NOT_THERE)


def _is_default(words: Sequence[str], default: object) -> bool:
    if isinstance(default, list):
        return list(words) == [str(entry) for entry in default]
    return default is not None and is_default(" ".join(words), default)


def effect_of_flag(key: str, words: Sequence[str]) -> Effect:
    """Return the effect of dropping option `key`."""
    return loss_of_flag(key, words).effect


def decides_run(key: str, words: Sequence[str]) -> bool:
    """Whether another value changes the model, the first weights or step, the batches, the schedule or the layout of the run."""
    if key in WITHOUT_EFFECT:
        return False
    if key in options():
        return not PATHS_AND_REPORTS.fullmatch(key)
    return effect_of_flag(key, words) in (Effect.MODEL, Effect.RUN)
