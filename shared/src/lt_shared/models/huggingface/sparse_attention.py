"""DeepSeek-V3.2 and GLM-5 in transformers: DeepSeek-V3 with an indexer that chooses the tokens of every query.

transformers ignores `indexer_rope_interleave` of the published GLM-5: the model type decides which channels the indexer pairs.
"""

from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture, SparseAttention
from lt_shared.models.huggingface import deepseek
from lt_shared.models.huggingface.config_fields import ABSENT, ModelType

V32_NAME, GLM_NAME = "deepseek_v32", "glm_moe_dsa"
_FIELDS = {
    "index_n_heads": "dsa_indexer_n_heads",
    "index_head_dim": "dsa_indexer_head_dim",
    "index_topk": "dsa_indexer_topk",
}
_DEFAULTS = {
    "q_lora_rank": 1536,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "routed_scaling_factor": 2.5,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 2048,
}
_V32_DEFAULTS = {**_DEFAULTS, "num_key_value_heads": 128, "n_group": 8, "topk_group": 4}
_GLM_DEFAULTS = {**_DEFAULTS, "num_key_value_heads": 64, "q_lora_rank": 2048, "index_n_heads": 32, "n_group": 1, "topk_group": 1}
_FULL = "full"


def _write(architecture: Architecture, interleaved: bool) -> dict[str, Any]:
    sparse = architecture.sparse_attention
    if sparse is None or sparse.dsa_indexer_rope_interleaved != interleaved:
        raise BadConfig(f"{architecture.name}: no indexer, or one that pairs other channels")
    fields = deepseek.written_v3(architecture)
    del fields["rope_interleave"]
    return fields | {
        **{field: getattr(sparse, name) for field, name in _FIELDS.items()},
        "indexer_rope_interleave": interleaved,
        **deepseek.mlp_layer_types(architecture.num_layers, architecture.moe_first_dense_layers),
    }


def _write_v32(architecture: Architecture) -> dict[str, Any]:
    return _write(architecture, interleaved=False)


def _write_glm(architecture: Architecture) -> dict[str, Any]:
    return _write(architecture, interleaved=True) | {"indexer_types": [_FULL] * architecture.num_layers}


def _read(config: dict[str, Any], name: str, kind: str, interleaved: bool) -> Architecture:
    sparse = SparseAttention(**{ours: config[field] for field, ours in _FIELDS.items()}, dsa_indexer_rope_interleaved=interleaved)
    absent = ABSENT | deepseek.ABSENT_IN_V3 | {"indexer_rope_interleave": interleaved}
    first = min(int(config["first_k_dense_replace"]), int(config["num_hidden_layers"]))
    config = config | {"first_k_dense_replace": deepseek.dense_layers(config, name, default=first)}
    return deepseek.read_v3(config, name, kind, absent, sparse_attention=sparse)


def _read_v32(config: dict[str, Any], name: str) -> Architecture:
    return _read(config, name, V32_NAME, interleaved=False)


def _read_glm(config: dict[str, Any], name: str) -> Architecture:
    kinds = config.get("indexer_types") or config.get("index_topk_pattern") or []
    shared = sorted({str(kind) for kind in kinds} - {_FULL, "F"})
    if shared or (not kinds and (config.get("index_topk_freq") or 1) > 1):
        setting = f"indexer_types has {', '.join(shared)}" if shared else f"index_topk_freq is {config['index_topk_freq']!r:.40}"
        raise BadConfig(
            f"{name}: {setting}: layers that take the tokens of an earlier layer's indexer are not supported",
            "use a model whose layers each have an indexer, as GLM-5",
        )
    return _read(config, name, GLM_NAME, interleaved=True)


def _layer_types(architecture: Architecture) -> list[str]:
    return ["indexed_attention"] * architecture.num_layers


_ALIASES = {"num_local_experts": "n_routed_experts"}
DEEPSEEK_V32 = ModelType(
    V32_NAME,
    "DeepseekV32ForCausalLM",
    _write_v32,
    _read_v32,
    aliases=_ALIASES,
    defaults=_V32_DEFAULTS,
    layer_types=_layer_types,
)
GLM_MOE_DSA = ModelType(
    GLM_NAME, "GlmMoeDsaForCausalLM", _write_glm, _read_glm, aliases=_ALIASES, defaults=_GLM_DEFAULTS, layer_types=_layer_types
)
