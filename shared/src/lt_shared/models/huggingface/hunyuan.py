"""Hunyuan in transformers: Llama with norms of queries and keys behind the rotation, and a rotary base raised by `alpha`.

A published file has "dynamic" RoPE with an alpha: transformers raises the base by alpha to the power of d / (d - 2) for a head of
d channels. The raised base is written as a plain one.
"""

from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields
from lt_shared.models.huggingface.config_fields import ModelType

_DENSE, _MOE = "hunyuan_v1_dense", "hunyuan_v1_moe"
_ROPES = ("rope_parameters", "rope_scaling")


def _with_raised_base(config: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the settings with plain RoPE in the place of the dynamic one. Raises BadConfig for a dynamic RoPE without alpha."""
    raised = {}
    for field in _ROPES:
        rope = dict(config.get(field) or {})
        if (rope.get("rope_type") or rope.get("type")) != "dynamic":
            continue
        alpha = rope.get("alpha")
        if not alpha:
            raise BadConfig(f"{name}: dynamic RoPE without alpha changes with the length of the text, which is not supported")
        head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        base = rope.get("rope_theta") or config.get("rope_theta") or 10000.0
        raised[field] = {"rope_type": "default", "rope_theta": base * alpha ** (head / (head - 2))}
    if not raised:
        return config
    theta = {} if config.get("rope_theta") is None else {"rope_theta": next(iter(raised.values()))["rope_theta"]}
    return config | raised | theta


def _write(architecture: Architecture) -> dict[str, Any]:
    return config_fields.written(architecture) | {
        "attention_bias": False,
        "mlp_bias": False,
        "use_qk_norm": True,
        **config_fields.padding(architecture, 0),
    }


def read_attention(config: dict[str, Any], name: str, kind: str, **family: Any) -> Architecture:
    """Read the settings that the dense model and the mixture of experts have alike, and `family`."""
    absent = {"attention_bias": False, "mlp_bias": False, "use_qk_norm": True, "use_cla": False}
    return config_fields.read(
        _with_raised_base(config, name), name, kind, absent=absent, qk_layernorm=True, qk_layernorm_after_rope=True, **family
    )


def _read(config: dict[str, Any], name: str) -> Architecture:
    return read_attention(config, name, _DENSE)


def _write_moe(architecture: Architecture) -> dict[str, Any]:
    if architecture.moe_shared_expert_intermediate_size != architecture.expert_size:
        raise BadConfig(f"{architecture.name}: Hunyuan's shared expert is as wide as the others, {architecture.expert_size}")
    return _write(architecture) | {"num_experts": architecture.num_experts, "moe_topk": architecture.moe_router_topk}


def _read_moe(config: dict[str, Any], name: str) -> Architecture:
    width = config["intermediate_size"]
    # Published files say what transformers takes for granted.
    granted = {"moe_intermediate_size": width, "num_shared_expert": 1, "norm_topk_prob": True, "moe_layer_num_skipped": 0}
    stated = {field: _of_all_layers(config, field, name) for field in granted if config.get(field) is not None}
    config_fields.check_values(stated, granted, name, _MOE)
    return read_attention(
        config,
        name,
        _MOE,
        num_experts=_of_all_layers(config, "num_experts", name),
        moe_router_topk=_of_all_layers(config, "moe_topk", name),
        moe_shared_expert_intermediate_size=width,
    )


def _of_all_layers(config: dict[str, Any], field: str, name: str) -> Any:
    """Return a setting that may be a list of one value per layer. Raises BadConfig if layers have different values."""
    values = config[field] if isinstance(config[field], list) else [config[field]]
    if len(set(values)) != 1:
        raise BadConfig(f"{name}: {field} is {values!r:.80}, and only models whose layers are all alike are known here")
    return values[0]


_DEFAULTS = {"rms_norm_eps": 1e-5, "max_position_embeddings": 2048}
HUNYUAN_V1_MOE = ModelType(
    _MOE,
    "HunYuanMoEV1ForCausalLM",
    _write_moe,
    _read_moe,
    aliases={"num_experts_per_tok": "moe_topk", "num_local_experts": "num_experts"},
    defaults=_DEFAULTS | {"num_experts": 1, "moe_topk": 1},
)
HUNYUAN_V1_DENSE = ModelType(_DENSE, "HunYuanDenseV1ForCausalLM", _write, _read, defaults=_DEFAULTS)
