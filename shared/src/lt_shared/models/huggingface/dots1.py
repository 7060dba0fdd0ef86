"""dots.llm1 in transformers: Qwen3's attention and DeepSeek-V3's experts.

With the same sizes a model would be a GLM-4.5, so the architecture keeps the model type.
"""

from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields, shared_experts
from lt_shared.models.huggingface.config_fields import ModelType

_NAME = "dots1"
_ABSENT = {"attention_bias": False, "norm_topk_prob": True, "scoring_func": "sigmoid", "topk_method": "noaux_tc"}


def _write(architecture: Architecture) -> dict[str, Any]:
    return config_fields.written(architecture) | {
        "attention_bias": False,
        "sliding_window": None,
        "max_window_layers": architecture.num_layers,
        **shared_experts.written(architecture),
        **shared_experts.sigmoid_router_written(architecture),
    }


def _read(config: dict[str, Any], name: str) -> Architecture:
    # The layers from `max_window_layers` on have the window. In the published models, no layer has one.
    window, first = config["sliding_window"], config["max_window_layers"]
    if window is not None and first < config["num_hidden_layers"] and not config.get("layer_types"):
        raise BadConfig(f"{name}: the layers from {first} on have a window of {window} tokens, which no published {_NAME} has")
    return config_fields.read(
        config,
        name,
        _NAME,
        absent=_ABSENT,
        qk_layernorm=True,
        model_type=_NAME,
        **shared_experts.read(config, name),
        **shared_experts.read_sigmoid_router(config, name),
    )


DOTS1 = ModelType(
    _NAME,
    "Dots1ForCausalLM",
    _write,
    _read,
    aliases={"num_local_experts": "n_routed_experts"},
    defaults={"num_key_value_heads": 32, "norm_topk_prob": False, "sliding_window": 4096, "max_window_layers": 62},
)
