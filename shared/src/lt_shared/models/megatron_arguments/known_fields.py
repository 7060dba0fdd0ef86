"""All fields of megatron-core's TransformerConfig and MLATransformerConfig, 0.16 to 0.19, and Megatron-LM's model arguments.

A field is read (`READ`); or changes the model's output or the meaning of stored weights, and must be off (`check`); or changes
neither (without_effect.py). Some fields change only a training step's logits, because they drop tokens or add noise
(`TRAINING_ONLY`). A field in no list was added by a later version: `remarks` names it when it is set.
"""

import enum
import re
from collections.abc import Mapping
from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.megatron_arguments import without_effect

# Fields that `arguments` and `rope` turn into an architecture, under the names of TransformerConfig and of Megatron-LM.
_READ_TEXT = """
num_layers hidden_size ffn_hidden_size num_attention_heads num_query_groups group_query_attention kv_channels vocab_size
padded_vocab_size max_position_embeddings seq_length norm_epsilon layernorm_epsilon normalization apply_layernorm_1p
layernorm_zero_centered_gamma add_bias_linear add_qkv_bias qk_layernorm untie_embeddings_and_output_weights
share_embeddings_and_output_weights init_method_std window_size window_attn_skip_freq softmax_scale softmax_type swiglu
quick_geglu openai_gelu gated_linear_unit activation_func glu_linear_offset activation_func_clamp_value bias_gelu_fusion
bias_activation_fusion mtp_num_layers num_experts num_moe_experts moe_ffn_hidden_size moe_layer_freq moe_router_topk
moe_router_load_balancing_type moe_aux_loss_coeff moe_shared_expert_intermediate_size moe_router_pre_softmax
moe_router_score_function moe_router_enable_expert_bias moe_router_num_groups moe_router_group_topk
moe_router_topk_scaling_factor position_embedding_type rotary_base rotary_percent use_rope_scaling rope_scaling
rope_scaling_factor scale_factor low_freq_factor high_freq_factor old_context_len rope_type rotary_scaling_factor
original_max_position_embeddings beta_fast beta_slow mscale mscale_all_dim yarn_rotary_scaling_factor
yarn_original_max_position_embeddings yarn_beta_fast yarn_beta_slow yarn_mscale yarn_mscale_all_dim
yarn_correction_range_round_to_int multi_latent_attention q_lora_rank kv_lora_rank qk_head_dim qk_pos_emb_head_dim v_head_dim
squared_relu no_rope_freq moe_shared_expert_gate
attention_output_gate experimental_attention_variant linear_attention_freq linear_conv_kernel_dim linear_key_head_dim
linear_value_head_dim linear_num_key_heads linear_num_value_heads
mamba_num_heads mamba_head_dim mamba_state_dim mamba_num_groups
dsa_indexer_n_heads dsa_indexer_head_dim dsa_indexer_topk dsa_indexer_rope_interleaved dsa_indexer_topk_freq
dsa_indexer_scoring_relu dsa_indexer_k_norm_epsilon
use_mup mup_base_hidden_size mup_embedding_mult mup_output_mult mup_base_head_dim mup_attn_scale_power
hybrid_layer_pattern hybrid_override_pattern
"""
READ = frozenset(_READ_TEXT.split())

_INTERLEAVED = "gate and up rows of its weights alternate in blocks, an order that is not read"
_ROUTER = "the router chooses or weighs experts in a way that no other format has"
_POSITIONS = "it rotates positions in a way that no other format has"
_LAYERS = "its layers differ in a way that no other format has"
_SCALES = "it scales activations in a way that no other format has"
_MODEL_OPT = "ModelOpt builds other layers then, which no other field says"
_ABSENT = (None, False, 0, "", ())
_NO_FACTOR = (*_ABSENT, 1)
# Fields that change the model: the values that turn the feature off, and the effect of other values.
_OFF: Mapping[str, tuple[tuple[Any, ...], str]] = {
    **dict.fromkeys(("moe_mlp_glu_interleave_size", "moe_shared_expert_glu_interleave_size"), (_ABSENT, _INTERLEAVED)),
    "moe_router_topk_limited_devices": (_ABSENT, f"{_ROUTER}: it depends on the number of devices of the run"),
    **dict.fromkeys(("moe_router_force_load_balancing", "moe_router_force_biased"), (_ABSENT, "the router adds random numbers")),
    "moe_apply_probs_on_input": (_ABSENT, _ROUTER),
    "moe_latent_size": (_ABSENT, "its experts work on a projection of the hidden states, which is not supported"),
    **dict.fromkeys(("rotary_interleaved", "mrope_section", "rotary_base_per_layer"), (_ABSENT, _POSITIONS)),
    **dict.fromkeys(("rotary_seq_len_interpolation_factor", "seq_len_interpolation_factor"), (_NO_FACTOR, _POSITIONS)),
    **dict.fromkeys(("qk_l2_norm", "attention_value_scale", "head_wise_attn_gate"), (_ABSENT, _LAYERS)),
    **dict.fromkeys(("apply_residual_connection_post_layernorm", "enable_hyper_connections"), (_ABSENT, _LAYERS)),
    "enable_mhc_connections": (_ABSENT, _LAYERS),
    "use_transformer_engine_full_layer_spec": (_ABSENT, "its layers are Transformer Engine's, with other tensors"),
    **dict.fromkeys(("enable_gpt_oss", "export_qk_l2_norm", "export_moe_apply_probs_on_input"), (_ABSENT, _MODEL_OPT)),
    "swiglu_limits": (_ABSENT, "its activation is another one"),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"), (_ABSENT, _SCALES)),
    **dict.fromkeys(("heterogeneous_block_specs", "heterogeneous_layers_config_path"), (_ABSENT, _LAYERS)),
    "heterogeneous_layers_config_encoded_json": (_ABSENT, _LAYERS),
    "retro_add_retriever": (_ABSENT, "it retrieves text (Retro), which is not supported"),
    "mtp_use_repeated_layer": (_ABSENT, "all its prediction layers are one, which no other format has"),
    "mtp_hybrid_override_pattern": (_ABSENT, "its prediction layers are of another kind"),
}
# Functions that build the layers, as Megatron-LM (`--spec MODULE FUNCTION`) and Megatron-Bridge name them: a stranger's can build
# any layers, and no field says which.
_SPECS = ("spec", "transformer_layer_spec")
_SPEC_MODULES = ("megatron.core.", "megatron.bridge.", "nemo.collections.llm.", "transformer_engine.", "torch.")
_SPEC_NAMES = ("local", "default_layer_spec")
_HYBRID = "would need a scan or an indexer, and is not supported"
_HYBRIDS = {
    **dict.fromkeys(("is_hybrid_model", "hybrid_attention_ratio", "hybrid_mlp_ratio"), "a state-space layer (Mamba)"),
}
# Kinds of load balancing that leave the choice of experts to the scores.
_BALANCING = ("aux_loss", "seq_aux_loss", "global_aux_loss", "none", None)
_BALANCING_FIELD = "moe_router_load_balancing_type"

_DROPS = "Megatron drops tokens or adds noise with it, and no other program does"
# megatron-core drops tokens or adds noise in evaluation too; exported models never have either.
TRAINING_ONLY = frozenset(
    ["moe_expert_capacity_factor", "moe_expert_rank_capacity_factor", "moe_token_dropping", "moe_input_jitter_eps"]
)

# Names that resemble TransformerConfig's model fields, and such names in the training loop that do not.
_OF_THE_MODEL = re.compile(
    r"(moe|mtp|rope|rotary|yarn|attention|attn|qk|q|kv|v|mlp|glu|activation|norm|layernorm|residual|embedding|softmax|window|"
    r"linear|head|router|experts?|shared|latent|mla|mup|scale|logits?|hyper|gated?|sliding|full|global|layer|interleaved)_.*|"
    r".*_(interleave_size|interleaved|softcapping|multipliers?|scale|freq|pattern|rank|gate|norm)"
)
_OF_THE_LOOP = re.compile(
    r"(logits_(save|load)|moe_(use_upcycling|upcycling)|head_lr|embedding_path|attention_mask|query_in_block|"
    r"global_batch|layer_wise|scheduler|kv_cache|norm_clip|loss_scale|initial_loss_scale|min_loss_scale|expert_parallel)\w*|"
    r"(loss|initial_loss|min_loss|grad|muon)_\w*"
)


def check(arguments: Mapping[str, Any], name: str) -> None:
    """Raises BadConfig for a field that changes the model in a way that no other format can say."""
    for field, layers in _HYBRIDS.items():
        if arguments.get(field):
            raise BadConfig(f"{name}: {field} is {arguments[field]!r:.80}: {layers} {_HYBRID}")
    has_experts = bool(arguments.get("num_experts"))
    for field, (accepted, reason) in _OFF.items():
        value = arguments.get(field)
        value = tuple(value) if isinstance(value, list) else value
        if value not in accepted and (has_experts or not field.startswith("moe_")):
            raise BadConfig(f"{name}: {field} is {value!r:.80}: {reason}", "export it with the program that wrote it")
    for field in _SPECS:
        for function in _function_names(arguments.get(field)):
            if function not in _SPEC_NAMES and not function.startswith(_SPEC_MODULES):
                raise BadConfig(
                    f"{name}: {field} is {function!r:.80}: a function outside of megatron-core builds its layers",
                    "export it with the program that wrote it",
                )
    balancing = arguments.get(_BALANCING_FIELD)
    kinds = balancing if isinstance(balancing, list | tuple) else [balancing]
    unknown = [kind for kind in kinds if kind not in _BALANCING]
    if has_experts and unknown:
        raise BadConfig(
            f"{name}: {_BALANCING_FIELD} is {unknown[0]!r:.80}: {_ROUTER}",
            "known are aux_loss, seq_aux_loss, global_aux_loss and none",
        )


def _function_names(value: Any) -> list[str]:
    """The dotted names of functions and classes in `[MODULE, FUNCTION]`, or in an object of YAML, at any depth."""
    if isinstance(value, Mapping):
        target = [str(value["_target_"])] if "_target_" in value else []
        return target + [name for child in value.values() if isinstance(child, Mapping | list) for name in _function_names(child)]
    if isinstance(value, list | tuple) and all(isinstance(child, str) for child in value):
        return [".".join(value)] if value else []
    if isinstance(value, list | tuple):
        return [name for child in value for name in _function_names(child)]
    return [str(value)] if value else []


class Fate(enum.Enum):
    """What becomes of a field of Megatron's arguments in a conversion."""

    MAPPED = "mapped"
    WITHOUT_EFFECT = "without effect"
    REFUSED = "refused"
    TRAINING_ONLY = "told"


def fate(field: str) -> tuple[Fate, str] | None:
    """Return the fate of a field with its reason, or None for a field that is in no list."""
    if field in READ:
        return Fate.MAPPED, ""
    if field in _OFF:
        return Fate.REFUSED, _OFF[field][1]
    if field in _HYBRIDS or field in _SPECS:
        return Fate.REFUSED, f"{_HYBRIDS[field]} {_HYBRID}" if field in _HYBRIDS else "a function outside of megatron-core"
    if field in TRAINING_ONLY:
        return Fate.TRAINING_ONLY, _DROPS
    reason = without_effect.reason(field)
    return None if reason is None else (Fate.WITHOUT_EFFECT, reason)


def is_known(field: str) -> bool:
    """Return whether the field, or its prefix, is in one of the lists."""
    return fate(field) is not None


def remarks(arguments: Mapping[str, Any], all_describe_model: bool = False) -> list[str]:
    """Return a sentence for every set field that changes training steps alone, and for every set field that is not known.

    Of the hundreds of arguments of a training program, unknown ones count if their name is like a model's. If
    `all_describe_model`, every unknown field counts.
    """
    set_fields = {field: value for field, value in arguments.items() if _is_set(value)}
    dropped = [f"{field} {set_fields[field]!r:.40}" for field in sorted(TRAINING_ONLY & set(set_fields))]
    if not arguments.get("num_experts"):
        dropped = []
    unknown = [f"{field} {value!r:.40}" for field, value in sorted(set_fields.items()) if _is_unknown(field, all_describe_model)]
    return [
        *(f"{text}: {_DROPS}" for text in dropped),
        *(f"{text}: not known here, and taken to change nothing" for text in unknown),
    ]


def _is_set(value: Any) -> bool:
    return isinstance(value, bool | int | float | str | list | tuple | Mapping) and bool(value)


def _is_unknown(field: str, all_describe_model: bool) -> bool:
    is_model = bool(_OF_THE_MODEL.fullmatch(field)) and not _OF_THE_LOOP.fullmatch(field)
    return not is_known(field) and (all_describe_model or is_model)
