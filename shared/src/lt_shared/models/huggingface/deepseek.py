"""DeepSeek-V2 with V2-Lite and V2.5, DeepSeek-V3 with R1, and V3's kind under types of their own: Kimi K2 and GLM-4.7-Flash.

The routers differ. V2 applies a softmax and does not normalise the probabilities of the chosen experts. V3 applies a sigmoid with
balancing biases and normalises over the chosen experts. Both may choose from the experts of the best groups only: V2 scores a
group by its best expert, V3 by its two best.
"""

from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture, LatentAttention
from lt_shared.models.huggingface import config_fields, shared_experts
from lt_shared.models.huggingface.config_fields import ABSENT, ModelType

ABSENT_IN_V3 = {
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "moe_layer_freq": 1,
    "rope_interleave": True,
}
_GREEDY, _GROUP_LIMITED, _V2_GROUP_SCORE_TOPK = "greedy", "group_limited_greedy", 1
_V2 = {"scoring_func": "softmax", "norm_topk_prob": False, "moe_layer_freq": 1}
KIMI_K2_NAME, GLM4_MOE_LITE_NAME = "kimi_k2", "glm4_moe_lite"
_V2_DEFAULTS = {"q_lora_rank": 1536, "n_shared_experts": 2, "first_k_dense_replace": 0, "routed_scaling_factor": 1.0}
_V3_DEFAULTS = {
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "routed_scaling_factor": 2.5,
    "n_group": 8,
    "topk_group": 4,
}
_GLM4_MOE_LITE_DEFAULTS = {
    "num_key_value_heads": 20,
    "q_lora_rank": 768,
    "n_shared_experts": 1,
    "routed_scaling_factor": 1.8,
    "n_group": 1,
    "topk_group": 1,
}


def written(architecture: Architecture) -> dict[str, Any]:
    """Return the fields that V2 and V3 share. Raises BadConfig for a model without latent attention or shared experts."""
    latent = architecture.latent_attention
    if latent is None or not architecture.moe_shared_expert_intermediate_size:
        raise BadConfig(f"{architecture.name}: no latent attention, or no shared experts")
    return config_fields.written(architecture) | {
        "attention_bias": False,
        "q_lora_rank": latent.q_lora_rank,
        "kv_lora_rank": latent.kv_lora_rank,
        "qk_nope_head_dim": latent.qk_head_dim,
        "qk_rope_head_dim": latent.qk_pos_emb_head_dim,
        "v_head_dim": latent.v_head_dim,
        # transformers takes the number of rotated channels from it.
        "head_dim": latent.qk_pos_emb_head_dim,
        "moe_layer_freq": 1,
        **shared_experts.written(architecture),
        "aux_loss_alpha": architecture.moe_aux_loss_coeff,
    }


def read(config: dict[str, Any], name: str, kind: str, **family: Any) -> Architecture:
    """Read the fields that V2 and V3 share, and add the arguments in `family`. Raises as `config_fields.read`."""
    shared = config["n_shared_experts"]
    if not shared:
        raise BadConfig(
            f"{name}: n_shared_experts is {shared!r}, and all published models of the {kind} family have shared experts"
        )
    # `head_dim` has no effect, because queries, keys and values have sizes of their own.
    without_head_dim = {field: value for field, value in config.items() if field != "head_dim"}
    return config_fields.read(
        without_head_dim,
        name,
        kind,
        latent_attention=LatentAttention(
            q_lora_rank=config.get("q_lora_rank"),
            kv_lora_rank=config["kv_lora_rank"],
            qk_head_dim=config["qk_nope_head_dim"],
            qk_pos_emb_head_dim=config["qk_rope_head_dim"],
            v_head_dim=config["v_head_dim"],
        ),
        moe_aux_loss_coeff=config.get("aux_loss_alpha") or 0.0,
        **shared_experts.read(config, name),
        **family,
    )


def written_v3(architecture: Architecture) -> dict[str, Any]:
    return written(architecture) | {
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "rope_interleave": True,
        **shared_experts.sigmoid_router_written(architecture),
    }


def _read_v3(config: dict[str, Any], name: str, model_type: str = "") -> Architecture:
    return read_v3(config, name, model_type or "deepseek_v3", ABSENT | ABSENT_IN_V3, model_type=model_type)


def read_v3(config: dict[str, Any], name: str, kind: str, absent: dict[str, Any], **family: Any) -> Architecture:
    """Read a model of type `kind` with V3's router, whose settings `absent` have these values; `family` has its other fields."""
    return read(config, name, kind, absent=absent, **shared_experts.read_sigmoid_router(config, name), **family)


def _write_kimi_k2(architecture: Architecture) -> dict[str, Any]:
    return written_v3(architecture)


def _read_kimi_k2(config: dict[str, Any], name: str) -> Architecture:
    return _read_v3(config, name, KIMI_K2_NAME)


def mlp_layer_types(layers: int, dense: int) -> dict[str, list[str]]:
    """Return config.json's list of kinds of MLPs: the first `dense` layers have no experts."""
    return {"mlp_layer_types": ["dense"] * dense + ["sparse"] * (layers - dense)}


def dense_layers(config: dict[str, Any], name: str, default: int) -> int:
    """Return the number of first layers without experts, `default` if `mlp_layer_types` is not there.

    Raises BadConfig for other layers without experts.
    """
    layers, kinds = int(config["num_hidden_layers"]), list(config.get("mlp_layer_types") or ())
    if not kinds:
        return default
    dense = kinds.index("sparse") if "sparse" in kinds else layers
    if kinds != mlp_layer_types(layers, dense)["mlp_layer_types"]:
        raise BadConfig(f"{name}: mlp_layer_types is {kinds!r:.80}, and only first layers without experts are known here")
    return dense


def _write_glm4_moe_lite(architecture: Architecture) -> dict[str, Any]:
    return written_v3(architecture) | mlp_layer_types(architecture.num_layers, architecture.moe_first_dense_layers)


def _read_glm4_moe_lite(config: dict[str, Any], name: str) -> Architecture:
    """transformers reads the kinds of layers, and ignores `first_k_dense_replace`, 1 in the published model."""
    return _read_v3(config | {"first_k_dense_replace": dense_layers(config, name, default=1)}, name, GLM4_MOE_LITE_NAME)


def _write_v2(architecture: Architecture) -> dict[str, Any]:
    groups = architecture.moe_router_num_groups
    return written(architecture) | {
        "scoring_func": "softmax",
        "topk_method": _GROUP_LIMITED if groups else _GREEDY,
        "norm_topk_prob": False,
        "n_group": groups or 1,
        "topk_group": architecture.moe_router_group_topk or 1,
    }


def _read_v2(config: dict[str, Any], name: str) -> Architecture:
    method = config.get("topk_method") or _GREEDY
    if method not in (_GREEDY, _GROUP_LIMITED):
        raise BadConfig(f"{name}: topk_method is {method!r}, known of the deepseek_v2 family are {_GREEDY} and {_GROUP_LIMITED}")
    groups = shared_experts.read_groups(config, _V2_GROUP_SCORE_TOPK) if method == _GROUP_LIMITED else {}
    return read(config, name, "deepseek_v2", absent=ABSENT | _V2, moe_router_pre_softmax=True, **groups)


DEEPSEEK_V2 = ModelType("deepseek_v2", "DeepseekV2ForCausalLM", _write_v2, _read_v2, defaults=_V2_DEFAULTS)
DEEPSEEK_V3 = ModelType("deepseek_v3", "DeepseekV3ForCausalLM", written_v3, _read_v3, defaults=_V3_DEFAULTS)
KIMI_K2 = ModelType(KIMI_K2_NAME, "DeepseekV3ForCausalLM", _write_kimi_k2, _read_kimi_k2, defaults=_V3_DEFAULTS)
GLM4_MOE_LITE = ModelType(
    GLM4_MOE_LITE_NAME,
    "Glm4MoeLiteForCausalLM",
    _write_glm4_moe_lite,
    _read_glm4_moe_lite,
    aliases={"num_local_experts": "n_routed_experts", "head_dim": "qk_rope_head_dim"},
    defaults=_GLM4_MOE_LITE_DEFAULTS,
)
