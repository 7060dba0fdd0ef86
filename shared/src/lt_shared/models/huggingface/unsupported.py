"""Model types that are known and refused, with a sentence about the missing features.

A type in neither list is reported as unknown.
"""

from collections.abc import Mapping
from typing import Any

from lt_shared.console import BadConfig

_STATE_SPACE = "state-space layers of Mamba-1, whose decay differs by channel, and would need a scan other than Mamba-2's"
_MAMBA_ALONE = "Mamba-2 layers alone, and models here have attention or MLPs, too"
_SHARED_BLOCKS = "a block of attention that several Mamba layers share, and would need shared weights in the layers"
_STREAMS = "hc_mult (several residual streams)"
_CLAMPED = "swiglu_limit (limits of gates and of up projections)"
_V4 = (
    f"{_STREAMS}, compress_rates (attention over compressed keys), hash_moe in mlp_layer_types (experts by token id), o_groups "
    f"(output projections in groups), a router of square roots of softplus and {_CLAMPED}, and would need them in the layers"
)
_GLM5_NEXT = (
    f"{_STREAMS}, linear_lower_bound (decays of gated delta with a least value) and {_CLAMPED}, and would need them in the layers"
)
_HY_V4 = f"{_STREAMS}, learnable_sink_init (sinks beside latent attention) and {_CLAMPED}, and would need them in the layers"
_QWEN4 = (
    "hc_count (several residual streams), ngram_size (embeddings of token sequences) and indexer_n_heads (an indexer of grouped "
    "attention), and would need them in the layers"
)
_BAILING = "kda_lower_bound (decays of gated delta with a least value), and would need it in Kimi Delta Attention"
_LIGHTNING = (
    "lightning attention, whose decays are constants, and factors of every layer's input, and would need both in the layers"
)
_RECURRENT = "a recurrence that is neither gated delta nor Mamba-2, and would need a scan of its own"
_CHUNKED = (
    "attention in chunks and a temperature that grows with the position, and would need both in the attention kernels: "
    "megatron-core has neither"
)
_PER_LAYER_EMBEDDINGS = "embeddings for every layer and keys that layers share, and would need both in megatron-core's block"
_SPARSE_MIXER = (
    "a router that chooses its two experts one after the other, in training at random among those near the best, with a gradient "
    "of its own (SparseMixer, router_jitter_noise), and would need both: by another router, its experts would get other tokens"
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
    _V4: ("deepseek_v4",),
    _GLM5_NEXT: ("glm5_next",),
    _HY_V4: ("hy_v4",),
    _QWEN4: ("qwen4_exp", "qwen4_exp_text"),
    _BAILING: ("bailing_hybrid",),
    _LIGHTNING: ("minimax",),
    _RECURRENT: ("rwkv", "xlstm", "recurrent_gemma"),
    _PER_LAYER_EMBEDDINGS: ("gemma3n", "gemma3n_text"),
    _SPARSE_MIXER: ("phimoe",),
    _BLOCK_SPARSE: ("phi3small",),
}
# Types whose indexer is supported.
INDEXED = ("deepseek_v32", "glm_moe_dsa")
HINT = "docs/guides/models.md lists the families that are supported"
_REASON_OF = {kind: reason for reason, kinds in _REASONS.items() for kind in kinds}


def refuse(config: Mapping[str, Any], name: str) -> None:
    """Raises BadConfig for a model type of the table, and for an indexer of another type."""
    kind = config.get("model_type")
    if kind in ("gemma4", "gemma4_text"):
        raise BadConfig(f"{name}: {kind} models have {_gemma4_features(config)}, and would need them in the layers", HINT)
    if isinstance(kind, str) and kind in _REASON_OF:
        raise BadConfig(f"{name}: {kind} models have {_REASON_OF[kind]}", HINT)
    if config.get("index_topk") and kind not in INDEXED:
        types = " and ".join(INDEXED)
        raise BadConfig(
            f"{name}: index_topk is {config['index_topk']!r:.40} (sparse attention), which only {types} have here", HINT
        )


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
