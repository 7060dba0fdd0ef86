"""Model types that are known and refused, with a sentence about the missing features.

A type in neither list is reported as unknown.
"""

from collections.abc import Mapping
from typing import Any

from lt_shared.console import BadConfig

_STATE_SPACE = "state-space layers of Mamba-1, whose decay differs by channel, and would need a scan other than Mamba-2's"
_MAMBA_ALONE = "Mamba-2 layers alone, and models here have attention or MLPs, too"
_SHARED_BLOCKS = "a block of attention that several Mamba layers share, and would need shared weights in the layers"
_LINEAR_ATTENTION = (
    "linear attention (a gated delta rule), and would need a scan of its own that also runs on a CPU: the known ones are GPU "
    "packages, flash-linear-attention and causal_conv1d"
)
_SPARSE_ATTENTION = "sparse attention, and would need the indexer that chooses the keys of every query, with its own loss"
_CHUNKED = (
    "attention in chunks and a temperature that grows with the position, and would need both in the attention kernels: "
    "megatron-core has neither"
)
_PER_LAYER_EMBEDDINGS = "embeddings for every layer and keys that layers share, and would need both in megatron-core's block"
_SPARSE_MIXER = (
    "a router that chooses its two experts one after the other, in training at random among those near the best, with a gradient "
    "of its own (SparseMixer), and would need both: trained with another router, its experts would get other tokens"
)
# Of Gemma 4: the settings of what every model has and of what some have, with transformers' values for settings left out.
_GEMMA4 = "norms of values, a factor on every layer's output"
_GEMMA4_SETTINGS: Mapping[str, tuple[Any, str]] = {
    "hidden_size_per_layer_input": (256, "embeddings for every layer"),
    "global_head_dim": (512, "heads of this size in layers without a window"),
    "num_global_key_value_heads": (None, "another number of keys in layers without a window"),
    "attention_k_eq_v": (False, "keys that are values, too, in layers without a window"),
    "num_kv_shared_layers": (0, "layers that take the keys and values of earlier ones"),
    "use_double_wide_mlp": (False, "wider feed-forward layers where keys are shared"),
    "enable_moe_block": (False, "experts beside a feed-forward layer"),
}
_BLOCK_SPARSE = "block-sparse attention and a clamped GEGLU, and would need kernels for both"
_REASONS: Mapping[str, tuple[str, ...]] = {
    _CHUNKED: ("llama4", "llama4_text"),
    _STATE_SPACE: ("falcon_mamba", "jamba", "mamba"),
    _MAMBA_ALONE: ("mamba2",),
    _SHARED_BLOCKS: ("zamba", "zamba2"),
    _LINEAR_ATTENTION: (
        *("qwen4_exp", "qwen4_exp_text"),
        *("minimax", "bailing_hybrid", "rwkv", "xlstm", "recurrent_gemma"),
    ),
    _SPARSE_ATTENTION: ("deepseek_v4", "glm5_next"),
    _PER_LAYER_EMBEDDINGS: ("gemma3n", "gemma3n_text"),
    _SPARSE_MIXER: ("phimoe",),
    _BLOCK_SPARSE: ("phi3small",),
}
# Types whose indexer is supported.
INDEXED = ("deepseek_v32", "glm_moe_dsa")
HINT = "docs/guides/models.md lists the families that are supported"
_REASON_OF = {kind: reason for reason, kinds in _REASONS.items() for kind in kinds}


def refuse(config: Mapping[str, Any], name: str) -> None:
    """Raises BadConfig for a model type of the table, or with DeepSeek-V3.2's indexer."""
    kind = config.get("model_type")
    if kind in ("gemma4", "gemma4_text"):
        raise BadConfig(f"{name}: {kind} models have {_gemma4_features(config)}, and would need them in the layers", HINT)
    if isinstance(kind, str) and kind in _REASON_OF:
        raise BadConfig(f"{name}: {kind} models have {_REASON_OF[kind]}", HINT)
    if config.get("index_topk") and kind not in INDEXED:
        raise BadConfig(f"{name}: the model has {_SPARSE_ATTENTION}", HINT)


def _gemma4_features(config: Mapping[str, Any]) -> str:
    """Name what a Gemma 4 has that is not supported, with the settings that say so."""
    text = dict(config.get("text_config") or config)
    # transformers writes the settings of the layers without a window by layer.
    by_layer = [dict(layer) for layer in dict(text.get("per_layer_config") or {}).values()]
    head_sizes = [layer["head_dim"] for layer in by_layer if layer.get("head_dim")]
    stored = {"global_head_dim": head_sizes[0]} if head_sizes else {}
    values = {field: default for field, (default, _) in _GEMMA4_SETTINGS.items()} | stored | text
    features = [f"{field} {values[field]} ({words})" for field, (_, words) in _GEMMA4_SETTINGS.items() if values[field]]
    return ", ".join([_GEMMA4, *features])
