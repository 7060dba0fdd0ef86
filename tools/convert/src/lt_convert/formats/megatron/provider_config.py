"""The model configuration in a checkpoint of Megatron-Bridge (`run_config.yaml`) or NeMo 2 (`context/model.yaml`).

Both write all fields of a configuration class, defaults included: the fields of megatron-core's TransformerConfig and GPTModel
under their own names, and `_target_`, the class. The fields become the arguments that Megatron-LM would store. The class of
another family may change the model in Python code, and a field may change the model in a way that no other format has: both are
refused by name. No object in a file is constructed.
"""

import re
from collections.abc import Mapping
from typing import Any

from lt_convert.formats.directories import listing
from lt_convert.formats.megatron import provider_gemma
from lt_convert.tensors.source_files import Files
from lt_shared.console import BadData
from lt_shared.files import strict_yaml
from lt_shared.models.megatron_arguments.known_fields import READ

RUN_CONFIG = "run_config.yaml"
WEIGHTS, CONTEXT, MODEL_YAML = "weights", "context", "model.yaml"

# Megatron-LM's names for fields of TransformerConfig and GPTModel, if they differ.
RENAMED = {
    "layernorm_epsilon": "norm_epsilon",
    "layernorm_zero_centered_gamma": "apply_layernorm_1p",
    "num_moe_experts": "num_experts",
    "seq_len_interpolation_factor": "rotary_seq_len_interpolation_factor",
    "bias_activation_fusion": "bias_gelu_fusion",
}
# Llama 3.1's RoPE scaling as fields of a Llama class: Megatron has constants for them, and `megatron_arguments` these names.
SCALING = {
    "low_freq_factor": "lt_rope_low_freq_factor",
    "high_freq_factor": "lt_rope_high_freq_factor",
    "old_context_len": "lt_rope_original_max_position_embeddings",
}
# Fields that are read from Megatron-LM's arguments alone: no family of these two programs that is read here sets them. Fields
# that no format has are in lt_shared's `known_fields`.
UNSUPPORTED = ("layernorm_zero_centered_gamma", "softmax_scale")
# Fields of gpt-oss, which mean nothing without its activation or without its positions.
_OF_ACTIVATION, _OF_YARN = ("activation_func_clamp_value", "glu_linear_offset"), ("yarn_rotary_scaling_factor",)
_ROTARY = ("rope", "yarn")
POSITIONS = (*_ROTARY, "learned_absolute")
_FAMILIES = re.compile(r"GPT|Llama|Mistral|Mixtral|Qwen|MLA|DeepSeek|Kimi|Moonlight|GLM")
_OTHERS = re.compile(
    r"Llama4|VL|\d\dV|ASR|Classification|Vision|Audio|Omni|Next|Embed|Reranker|Nemotron|Hybrid|Mamba|Bidirectional|Heterogeneous|GLM5|DSA|KimiK3|V32|V4"
)
# Modules of the programs that write these files: a class from elsewhere may compute another model from the same fields.
_MODULES = ("megatron.bridge.", "megatron.core.", "nemo.collections.llm.")
# The function of gpt-oss: GELU approximated by a sigmoid.
_QUICK = "quick_gelu"
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


def read(directory: str, files: Files) -> tuple[dict[str, Any], str] | None:
    """Read Megatron's arguments; return them with their file, or None for another program's checkpoint.

    Raises BadData for a malformed file, and for a model that no other format has.
    """
    run, _, name = directory.rpartition("/")
    if RUN_CONFIG in listing(directory):
        path, section = f"{directory}/{RUN_CONFIG}", "model"
    elif name == WEIGHTS and CONTEXT in listing(run) and MODEL_YAML in listing(f"{run}/{CONTEXT}"):
        path, section = f"{run}/{CONTEXT}/{MODEL_YAML}", "config"
    else:
        return None
    try:
        document = strict_yaml.loads(files.read(path, 0, files.size_bytes(path)).decode())
    except (ValueError, RecursionError) as error:
        raise BadData(f"{path}: not a configuration in YAML: {error}") from None
    fields = document.get(section) if isinstance(document, dict) else None
    if not isinstance(fields, dict):
        raise BadData(f"{path}: has no section {section!r}")
    return _arguments(fields, path), path


def _arguments(fields: Mapping[str, Any], path: str) -> dict[str, Any]:
    # Megatron-Bridge's newer configurations keep the fields of TransformerConfig apart from GPTModel's fields.
    inner = fields.get("transformer")
    merged = {**(inner if isinstance(inner, dict) else {}), **fields}
    target = str(merged.get("_target_", ""))
    if provider_gemma.is_provider(target):
        return provider_gemma.arguments({name: _number(value) for name, value in merged.items() if name != "transformer"}, path)
    _check_class(target, path)
    for name in UNSUPPORTED:
        # With muP, megatron-core writes the scale that it has computed.
        if merged.get(name) and not (name == "softmax_scale" and merged.get("use_mup")):
            raise BadData(f"{path}: {name} is {merged[name]!r:.80}, which no other format supports")
    is_quick, is_yarn = _function(merged) == _QUICK, merged.get("position_embedding_type") == "yarn"
    for name in (*(() if is_quick else _OF_ACTIVATION), *(() if is_yarn else _OF_YARN)):
        if merged.get(name):
            raise BadData(f"{path}: {name} is {merged[name]!r:.80}, which no other format supports")
    if merged.get("position_embedding_type") not in POSITIONS:
        raise BadData(f"{path}: position_embedding_type is {merged.get('position_embedding_type')!r:.80}, known are {POSITIONS}")
    for name, value in merged.items():
        if isinstance(value, dict) and name in READ and name != "activation_func":
            raise BadData(f"{path}: {name} is an object, {str(value.get('_target_'))!r:.80}, not a plain value")
    fields = {RENAMED.get(name, name): _number(value) for name, value in merged.items() if name != "transformer"}
    try:
        arguments = fields | {
            "untie_embeddings_and_output_weights": not fields["share_embeddings_and_output_weights"],
            "group_query_attention": fields.get("num_query_groups") is not None,
            "ffn_hidden_size": fields.get("ffn_hidden_size") or 4 * fields["hidden_size"],
            "max_position_embeddings": _positions(fields),
        }
    except (KeyError, TypeError) as error:
        raise BadData(f"{path}: does not describe a model: {error}") from None
    if not fields.get("num_experts"):
        arguments = {name: value for name, value in arguments.items() if not name.startswith("moe_")}
    arguments["transformer_impl"] = merged.get("transformer_impl") or "transformer_engine"
    return arguments | _activation(merged, path) | _rope_scaling(fields)


def _check_class(target: str, path: str) -> None:
    name = target.rpartition(".")[2]
    if target and not target.startswith(_MODULES):
        raise BadData(
            f"{path}: the model is a {target}, a class outside of Megatron-Bridge and NeMo, which may change the model",
            "export it to Hugging Face with the program that wrote it",
        )
    if not _FAMILIES.search(name) or _OTHERS.search(name):
        raise BadData(
            f"{path}: the model is a {target or 'class without a name'}, not one of "
            "GPT, gpt-oss, Llama, Mistral, Mixtral, Qwen, DeepSeek, Kimi, GLM, Gemma 2 and Gemma 3",
            "export it to Hugging Face with the program that wrote it",
        )


def _positions(arguments: Mapping[str, Any]) -> Any:
    """Learned positions are as many as a sequence has tokens; some classes keep a rotary model's own number beside that."""
    is_rotary = arguments.get("position_embedding_type") in _ROTARY
    return (arguments.get("max_position_embeddings") if is_rotary else None) or arguments["seq_length"]


def _number(value: Any) -> Any:
    """A number that YAML takes for text, as `1e-05`, which has no decimal point."""
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


def _function(fields: Mapping[str, Any]) -> str:
    activation = fields.get("activation_func")
    return str(activation.get("_target_") if isinstance(activation, dict) else activation).rpartition(".")[2]


def _activation(fields: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the arguments for `activation_func`, which is the name of a function or an object that holds it."""
    activation, function = fields.get("activation_func"), _function(fields)
    gated = bool(fields.get("gated_linear_unit"))
    if gated and function == _QUICK:
        return {"swiglu": False, "quick_geglu": True}
    if gated and function in ("silu", "swish"):
        return {"swiglu": True}
    if not gated and function in ("gelu", "openai_gelu", "fast_gelu", "gelu_tanh"):
        is_tanh = function != "gelu" or (isinstance(activation, dict) and activation.get("approximate") == "tanh")
        return {"swiglu": False, "openai_gelu": is_tanh}
    raise BadData(f"{path}: activation_func is {function}{' with gates' if gated else ''}, known are SwiGLU, gpt-oss's and GELU")


def _rope_scaling(fields: Mapping[str, Any]) -> dict[str, Any]:
    if fields.get("rope_scaling"):
        return {"use_rope_scaling": True, "rope_scaling_factor": fields.get("rope_scaling_factor", 8.0)}
    if "scale_factor" in fields and "low_freq_factor" in fields:
        settings = {name: fields[field] for field, name in SCALING.items() if field in fields}
        return {"use_rope_scaling": True, "rope_scaling_factor": fields["scale_factor"], **settings}
    return {"use_rope_scaling": False}
