"""GLM-4.5, GLM-4.6 and Air in transformers: DeepSeek-V3's experts, router and prediction layers on grouped query attention.

Half of every head is rotated (`partial_rotary_factor`), queries, keys and values have biases (`attention_bias`), and all but Air
norm queries and keys (`use_qk_norm`).
"""

from typing import Any

from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields, shared_experts
from lt_shared.models.huggingface.config_fields import ModelType

_ROUTER = {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": True}
_ABSENT = {"mlp_bias": False, "use_sliding_window": False, **_ROUTER}
_DEFAULTS = {"num_key_value_heads": 8, "n_shared_experts": 1, "first_k_dense_replace": 1}


def _write(architecture: Architecture) -> dict[str, Any]:
    return config_fields.written_partly_rotated(architecture) | {
        "attention_bias": architecture.add_qkv_bias,
        "use_qk_norm": architecture.qk_layernorm,
        **shared_experts.written(architecture),
        **shared_experts.sigmoid_router_written(architecture),
    }


def _read(config: dict[str, Any], name: str) -> Architecture:
    return config_fields.read(
        config,
        name,
        "glm4_moe",
        absent=_ABSENT,
        rotary_percent=0.5,
        add_qkv_bias=config.get("attention_bias", False),
        qk_layernorm=config.get("use_qk_norm", False),
        **shared_experts.read(config, name),
        **shared_experts.read_sigmoid_router(config, name),
    )


GLM4_MOE = ModelType("glm4_moe", "Glm4MoeForCausalLM", _write, _read, defaults=_DEFAULTS)
