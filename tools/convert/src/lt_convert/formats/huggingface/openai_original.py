"""gpt-oss as OpenAI publishes it in `original/`: the numbers of its own model in `config.json`, other names, queries, keys and
values in one matrix.

The values are the same as in the files for transformers beside that directory: MXFP4 blocks and scales, gates and ups in
alternating rows. So the tensors are renamed, and everything else follows transformers' format. OpenAI's loader takes each
safetensors file of the directory, and so does this module if there is no index.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from lt_convert.tensors.tensor import Tensor
from lt_shared.console import BadConfig, BadData
from lt_shared.models import quantization

DIRECTORY = "original"
# The fields of OpenAI's configuration, with the values that its class has for those that a file leaves out.
_FIELDS = {
    "num_hidden_layers": 36,
    "num_experts": 128,
    "experts_per_token": 4,
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "swiglu_limit": 7.0,
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "sliding_window": 128,
    "initial_context_length": 4096,
    "rope_theta": 150000.0,
    "rope_scaling_factor": 32.0,
    "rope_ntk_alpha": 1.0,
    "rope_ntk_beta": 32.0,
}
_KEPT = ("num_hidden_layers", "vocab_size", "hidden_size", "intermediate_size", "swiglu_limit", "head_dim", "sliding_window",
         "num_attention_heads", "num_key_value_heads", "rope_theta")  # fmt: skip
_NAMES = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.scale": "model.norm.weight",
    "unembedding.weight": "lm_head.weight",
}
# Those of a layer.
_LAYER_NAMES = {
    "attn.norm.scale": "input_layernorm.weight",
    "attn.sinks": "self_attn.sinks",
    "attn.out.weight": "self_attn.o_proj.weight",
    "attn.out.bias": "self_attn.o_proj.bias",
    "mlp.norm.scale": "post_attention_layernorm.weight",
    "mlp.gate.weight": "mlp.router.weight",
    "mlp.gate.bias": "mlp.router.bias",
    "mlp.mlp1_weight": "mlp.experts.gate_up_proj",
    "mlp.mlp1_bias": "mlp.experts.gate_up_proj_bias",
    "mlp.mlp2_weight": "mlp.experts.down_proj",
    "mlp.mlp2_bias": "mlp.experts.down_proj_bias",
}
_QUANTIZED = {".blocks": "_blocks", ".scales": "_scales"}
_LAYER = re.compile(r"block\.(\d+)\.(.*)")
_QKV = re.compile(r"attn\.qkv\.(weight|bias)")
_SHARD = re.compile(r"model--\d{5}-of-\d{5}\.safetensors")


def is_original(config: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is OpenAI's: one for transformers may have its names, too, and says its type."""
    return "model_type" not in config and "architectures" not in config and {"rope_ntk_alpha", "experts_per_token"} <= set(config)


def shards(names: Sequence[str]) -> list[str]:
    return sorted(name for name in names if _SHARD.fullmatch(name))


def config_for_transformers(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same model's `config.json` for transformers. Raises BadConfig for a setting that OpenAI's model does not have."""
    unknown = sorted(set(config) - set(_FIELDS))
    if unknown:
        raise BadConfig(f"{unknown[0]} is no setting of OpenAI's gpt-oss", "use the files for transformers")
    fields = _FIELDS | dict(config)
    factor, context = fields["rope_scaling_factor"], fields["initial_context_length"]
    yarn = {
        "rope_type": "yarn",
        "factor": factor,
        "beta_fast": fields["rope_ntk_beta"],
        "beta_slow": fields["rope_ntk_alpha"],
        "original_max_position_embeddings": context,
        "truncate": False,
    }
    return {name: fields[name] for name in _KEPT} | {
        "model_type": "gpt_oss",
        "num_local_experts": fields["num_experts"],
        "num_experts_per_tok": fields["experts_per_token"],
        "max_position_embeddings": int(context * factor),
        "rope_scaling": yarn,
        "rms_norm_eps": 1e-5,
        "attention_bias": True,
        "tie_word_embeddings": False,
        "layer_types": [("sliding_attention", "full_attention")[layer % 2] for layer in range(fields["num_hidden_layers"])],
    }


def renamed(tensors: Mapping[str, Tensor], config: Mapping[str, Any], origin: str) -> dict[str, Tensor]:
    """The tensors as in the files for transformers. Raises BadData for an unknown name, or a shape that does not fit."""
    fields = _FIELDS | dict(config)
    queries, keys = (fields[heads] * fields["head_dim"] for heads in ("num_attention_heads", "num_key_value_heads"))
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        layer = _LAYER.fullmatch(name)
        qkv = _QKV.fullmatch(layer[2]) if layer else None
        if not layer and name in _NAMES:
            result[_NAMES[name]] = tensor
        elif layer and qkv:
            if tensor.shape[0] != queries + 2 * keys:
                raise BadData(f"{origin}: {name} has {tensor.shape[0]} rows, the configuration says {queries + 2 * keys}")
            bounds = {"q": range(queries), "k": range(queries, queries + keys), "v": range(queries + keys, queries + 2 * keys)}
            for kind, rows in bounds.items():
                result[f"model.layers.{layer[1]}.self_attn.{kind}_proj.{qkv[1]}"] = tensor.take(0, rows)
        elif layer and (inner := _inner_name(layer[2])):
            is_matrix = inner.endswith("_proj") and len(tensor.shape) == 3
            result[f"model.layers.{layer[1]}.{inner}"] = tensor.permuted((0, 2, 1)) if is_matrix else tensor
        else:
            raise BadData(f"{origin}: {name} is no tensor of OpenAI's gpt-oss", "use the files for transformers")
    return result


def _inner_name(name: str) -> str | None:
    for end, theirs in _QUANTIZED.items():
        if name.endswith(end):
            stem = _LAYER_NAMES.get(name.removesuffix(end))
            return stem and stem + theirs
    return _LAYER_NAMES.get(name)


def quantization_of(tensors: Mapping[str, Tensor]) -> quantization.Quantization | None:
    """MXFP4 where a tensor is stored as such: the configuration does not say it."""
    return quantization.MXFP4 if any(name.endswith("_blocks") for name in tensors) else None
