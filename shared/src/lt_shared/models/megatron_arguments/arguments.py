"""An `Architecture` as Megatron-LM's command-line arguments (the names in its `args` namespace), and back.

lt-train's own flags carry the same names, its log prints them the way Megatron does, and checkpoints store them, so a run can be
described from any of the three. Two things have another form there: a sliding window of n tokens is `--window-size n-1,0`, the
keys to the left and to the right of a query; and the layers that have experts are a list. What Megatron has no argument for (a
soft cap, all numbers of Llama 3.1's RoPE scaling but the factor) is kept under names that begin with `lt_`, which it does not
read.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models import hybrid_pattern
from lt_shared.models.architecture import CLAMPED_SWIGLU_LIMIT, Architecture, LatentAttention
from lt_shared.models.architecture.sizes import NEWER
from lt_shared.models.megatron_arguments import (
    gated_delta,
    known_fields,
    mamba,
    mup,
    rope,
    short_convolution,
    sparse_attention,
)
from lt_shared.models.rope_scaling import RopeScaling

PREFIX = "lt_"
# transformers' DeepSeek models use this epsilon for the latents, whatever epsilon their other norms have.
LATENT_NORM_EPSILON = 1e-6
# Fields that a model may lack, and the equivalent Megatron arguments.
_FEATURES = {
    "sliding_window": "window_size",
    "moe_shared_expert_intermediate_size": "moe_shared_expert_intermediate_size",
    "moe_shared_expert_gate": "moe_shared_expert_gate",
    "moe_router_pre_softmax": "moe_router_pre_softmax",
    "moe_router_score_function": "moe_router_score_function",
    "moe_router_enable_expert_bias": "moe_router_enable_expert_bias",
    "moe_router_num_groups": "moe_router_num_groups",
    "moe_router_group_topk": "moe_router_group_topk",
    "moe_router_topk_scaling_factor": "moe_router_topk_scaling_factor",
    "window_attn_skip_freq": "window_attn_skip_freq",
    "softmax_scale": "softmax_scale",
    "layernorm_zero_centered_gamma": "apply_layernorm_1p",
    "mtp_num_layers": "mtp_num_layers",
    "attention_output_gate": "attention_output_gate",
}
# Fields that are read from several arguments, or from an argument with another form.
_OF_OTHER_FORM = (
    *("moe_ffn_hidden_size", "moe_first_dense_layers", "latent_attention", "gated_delta", "short_convolution"),
    *("mamba", "mlp_layers", "side_by_side", "sparse_attention"),
    *("attention_sinks", "add_bias_linear", "activation", "no_rope_freq", "gated_linear_unit", "normalization"),
)
# All others of the newer fields.
_WITHOUT_ARGUMENT = tuple(name for name in NEWER if name not in _FEATURES and name not in _OF_OTHER_FORM)
# Since 0.16 Megatron-LM's namespace has the names of TransformerConfig's fields for these arguments.
_RENAMED = {"layernorm_epsilon": "norm_epsilon", "layernorm_zero_centered_gamma": "apply_layernorm_1p"}
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Architecture)}
_CLAMPED_SWIGLU = {"quick_geglu": True, "glu_linear_offset": 1.0, "activation_func_clamp_value": CLAMPED_SWIGLU_LIMIT}


def to_arguments(architecture: Architecture) -> dict[str, Any]:
    """The arguments of `architecture`."""
    latent = architecture.latent_attention
    return {
        "num_layers": architecture.num_layers,
        "hidden_size": architecture.hidden_size,
        "ffn_hidden_size": architecture.ffn_hidden_size,
        "num_attention_heads": architecture.num_attention_heads,
        "group_query_attention": architecture.num_query_groups != architecture.num_attention_heads,
        "num_query_groups": architecture.num_query_groups,
        "kv_channels": architecture.kv_channels,
        "vocab_size": architecture.vocab_size,
        "max_position_embeddings": architecture.max_position_embeddings,
        **rope.to_arguments(architecture),
        **arguments_of_style(architecture),
        "norm_epsilon": architecture.norm_epsilon,
        "untie_embeddings_and_output_weights": not architecture.tie_embeddings,
        "init_method_std": architecture.init_std,
        "add_qkv_bias": architecture.add_qkv_bias or architecture.add_bias_linear,
        # With latent attention it means the norms of the latents, which all such models have.
        "qk_layernorm": architecture.qk_layernorm or latent is not None,
        "window_size": (architecture.sliding_window - 1, 0) if architecture.sliding_window else None,
        "num_experts": architecture.num_experts,
        **(_experts(architecture) if architecture.num_experts else {}),
        **({"multi_latent_attention": True, **dataclasses.asdict(latent)} if latent else {}),
        **gated_delta.to_arguments(architecture),
        **short_convolution.to_arguments(architecture),
        **mamba.to_arguments(architecture),
        **sparse_attention.to_arguments(architecture),
        **_features(architecture),
    }


def absent_in_megatron(architecture: Architecture) -> list[str]:
    """List the features that Megatron-LM has no argument for and would ignore. They do not change the tensors' names."""
    scaling = architecture.rope_scaling
    absent = []
    if scaling and not rope.is_computable_by_megatron(scaling):
        absent.append(f"its RoPE scaling ({scaling}): Megatron has constants for every RoPE scaling parameter but the factor")
    if architecture.latent_attention and architecture.norm_epsilon != LATENT_NORM_EPSILON:
        absent.append(f"the epsilon of its latents' norms, {LATENT_NORM_EPSILON}: Megatron takes the model's")
    if architecture.moe_router_enable_expert_bias and architecture.moe_router_score_function == "softmax":
        absent.append("its router's biases: Megatron adds them to sigmoid scores only")
    if architecture.activation == "xielu":
        absent.append("its activation, xIELU: Megatron would compute GELU")
    if architecture.rotary_base != int(architecture.rotary_base):
        absent.append(f"its rotary base of {architecture.rotary_base}: Megatron's is a whole number")
    absent += gated_delta.absent_in_megatron(architecture) + short_convolution.absent_in_megatron(architecture)
    absent += mamba.absent_in_megatron(architecture)
    changed_fields = [
        name for name in _WITHOUT_ARGUMENT if name != "model_type" and getattr(architecture, name) != _DEFAULTS[name]
    ]
    return [*absent, *(f"{name} {getattr(architecture, name)}" for name in changed_fields)]


def absent_in_hybrid_model(architecture: Architecture) -> list[str]:
    """List the features that GPTModel has and HybridModel (megatron-core 0.19) would ignore."""
    scaling = architecture.rope_scaling
    if isinstance(scaling, RopeScaling) and rope.is_computable_by_megatron(scaling):
        return [f"its RoPE scaling ({scaling})"]
    return []


def _features(architecture: Architecture) -> dict[str, Any]:
    """Return the arguments of the features that Llama lacks."""
    features = {name: getattr(architecture, name) for name in (*_FEATURES, *_WITHOUT_ARGUMENT)}
    arguments = {_FEATURES.get(name, PREFIX + name): value for name, value in features.items() if value != _DEFAULTS[name]}
    arguments.pop("window_size", None)
    if architecture.attention_sinks:
        arguments["softmax_type"] = "learnable"
    if architecture.activation == "clamped_swiglu":
        arguments |= _CLAMPED_SWIGLU
    elif architecture.activation == "relu2":
        arguments["squared_relu"] = True
    elif architecture.activation == "xielu" or (architecture.activation != "silu" and architecture.is_gated):
        arguments[f"{PREFIX}activation"] = architecture.activation
    if architecture.no_rope_freq:
        arguments["no_rope_freq"] = _without_rotation(architecture)
    return arguments


def _without_rotation(architecture: Architecture) -> int | list[int]:
    """Return Megatron's `no_rope_freq`: 1 for each layer that rotates nothing. A number has to divide the number of layers."""
    frequency, layers = architecture.no_rope_freq or 0, architecture.num_layers
    return [int(not architecture.rotates(layer)) for layer in range(layers)] if layers % frequency else frequency


def _experts(architecture: Architecture) -> dict[str, Any]:
    dense, layers = architecture.moe_first_dense_layers, architecture.num_layers
    return {
        "moe_ffn_hidden_size": architecture.expert_size,
        "moe_router_topk": architecture.moe_router_topk,
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": architecture.moe_aux_loss_coeff,
        **({"moe_layer_freq": [0] * dense + [1] * (layers - dense)} if dense else {}),
    }


def from_arguments(arguments: Mapping[str, Any], name: str) -> Architecture:
    """The architecture of the arguments of GPTModel or HybridModel, as parsed values.

    Raises BadConfig for an unsupported model or a missing size.
    """
    arguments = hybrid_pattern.to_decoder(arguments, name)
    known_fields.check(arguments, name)
    arguments = _under_former_names(arguments, name)
    try:
        llama = rope.is_rotary(arguments, name)
        latent = _latent_attention(arguments)
        features = _read_features(arguments, name)
        style = {name: features[name] for name in ("activation", "gated_linear_unit", "normalization")}
        for field, value in _style(llama, biases=bool(arguments.get("add_bias_linear")), **style).items():
            if arguments.get(field, value) != value:
                position = arguments["position_embedding_type"]
                raise BadConfig(f"{name}: {field} is {arguments[field]!r} with {position} positions, expected {value!r}")
        is_plain_gelu = not llama or (features["activation"] == "gelu_tanh" and not features["gated_linear_unit"])
        if is_plain_gelu and not arguments.get("bias_gelu_fusion", True) and not arguments.get("openai_gelu", False):
            raise BadConfig(
                f"{name}: bias_gelu_fusion is False, so GELU is exact, and the only GELU here is Megatron's fused one"
            )
        heads = arguments["num_attention_heads"]
        return Architecture(
            name=name,
            family="llama" if llama else "gpt",
            num_layers=arguments["num_layers"],
            hidden_size=arguments["hidden_size"],
            num_attention_heads=heads,
            num_query_groups=heads if latent or not arguments.get("group_query_attention") else arguments["num_query_groups"],
            vocab_size=arguments["vocab_size"],
            max_position_embeddings=arguments["max_position_embeddings"],
            kv_channels=0 if latent else arguments.get("kv_channels") or 0,
            norm_epsilon=arguments.get("norm_epsilon", 1e-5),
            tie_embeddings=not arguments["untie_embeddings_and_output_weights"],
            init_std=arguments.get("init_method_std", 0.02),
            add_qkv_bias=llama and arguments.get("add_qkv_bias", False),
            qk_layernorm=arguments.get("qk_layernorm", False) and latent is None,
            latent_attention=latent,
            gated_delta=gated_delta.from_arguments(arguments, name),
            short_convolution=short_convolution.from_arguments(arguments, name),
            **mamba.from_arguments(arguments, name),
            sparse_attention=sparse_attention.from_arguments(arguments, name),
            **rope.from_arguments(arguments),
            **_read_experts(arguments, name),
            **(_multipliers(arguments, heads, latent is not None) | features | _windows(arguments, name)),
            no_rope_freq=_no_rope_freq(arguments, name) if llama else None,
        )
    except KeyError as error:
        raise BadConfig(f"{name}: the Megatron arguments have no {error}") from None
    except (TypeError, ValueError) as error:
        raise BadConfig(f"{name}: the Megatron arguments are malformed: {error}") from None


def _under_former_names(arguments: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Give renamed arguments the names from before 0.16. Raises BadConfig if both names have values, and different ones."""
    result = dict(arguments)
    for field, former in _RENAMED.items():
        value, former_value = arguments.get(field), arguments.get(former)
        if value is not None and former_value is not None and value != former_value:
            raise BadConfig(f"{name}: {field} is {value!r}, and {former}, its former name, is {former_value!r}")
        if value is not None:
            result[former] = value
    return result


def _multipliers(arguments: Mapping[str, Any], heads: int, is_latent: bool) -> dict[str, Any]:
    if not arguments.get("use_mup"):
        return {}
    hidden = arguments["hidden_size"]
    return mup.multipliers(arguments, hidden, arguments.get("kv_channels") or hidden // heads, is_latent)


def _read_features(arguments: Mapping[str, Any], name: str) -> dict[str, Any]:
    features: dict[str, Any] = {}
    for field in (*_FEATURES, *_WITHOUT_ARGUMENT):
        value = arguments.get(_FEATURES.get(field, PREFIX + field))
        if value is not None and (not field.startswith("moe_") or arguments.get("num_experts")):
            features[field] = value
    if features.get("moe_router_num_groups") == features.get("moe_router_group_topk") == 1:
        # A single group that holds every expert means no grouping.
        features |= {"moe_router_num_groups": None, "moe_router_group_topk": None}
    clamped = _is_clamped_swiglu(arguments, name)
    softmax = arguments.get("softmax_type") or "vanilla"
    if softmax not in ("vanilla", "learnable"):
        raise BadConfig(
            f"{name}: softmax_type is {softmax!r}, known here are vanilla and learnable, which has a sink in each head"
        )
    return (
        features
        | _read_layer_style(arguments, clamped, name)
        | {
            "attention_sinks": softmax == "learnable",
            "add_bias_linear": bool(arguments.get("add_bias_linear"))
            and arguments["position_embedding_type"] != "learned_absolute",
        }
    )


def _read_layer_style(arguments: Mapping[str, Any], clamped: bool, name: str) -> dict[str, Any]:
    """Return activation, gates and norms. A GPT has the defaults, which its family replaces. Raises BadConfig."""
    is_gpt = arguments["position_embedding_type"] == "learned_absolute"
    if arguments.get("squared_relu") and (is_gpt or arguments.get("swiglu")):
        raise BadConfig(f"{name}: squared_relu with {'learned positions' if is_gpt else 'swiglu'}: no model here has both")
    if is_gpt:
        return {"activation": "silu", "gated_linear_unit": True, "normalization": "RMSNorm"}
    kept, is_gated = arguments.get(f"{PREFIX}activation"), True
    activation = "clamped_swiglu" if clamped else kept or "silu"
    if arguments.get("squared_relu"):
        activation, is_gated = "relu2", False
    elif not (clamped or kept or arguments.get("swiglu", True)):
        activation, is_gated = "gelu_tanh", False
    elif activation == "xielu":
        is_gated = False
    return {
        "activation": activation,
        "gated_linear_unit": is_gated,
        "normalization": arguments.get("normalization", "RMSNorm"),
    }


def _is_clamped_swiglu(arguments: Mapping[str, Any], name: str) -> bool:
    """Return whether the activation is gpt-oss's. Raises BadConfig if only some arguments match."""
    stored_arguments = {key: arguments.get(key) for key in _CLAMPED_SWIGLU}
    if any(stored_arguments.values()) and stored_arguments != _CLAMPED_SWIGLU:
        stored_text = ", ".join(f"{key} {value!r}" for key, value in stored_arguments.items())
        expected = ", ".join(f"{key} {value!r}" for key, value in _CLAMPED_SWIGLU.items())
        raise BadConfig(f"{name}: an activation with {stored_text}, known here is {expected}")
    return stored_arguments == _CLAMPED_SWIGLU


def _read_experts(arguments: Mapping[str, Any], name: str) -> dict[str, Any]:
    experts, ffn = arguments.get("num_experts"), arguments["ffn_hidden_size"]
    if not experts:
        return {"ffn_hidden_size": ffn}
    dense = dense_layers(arguments.get("moe_layer_freq", 1), arguments["num_layers"], name)
    return {
        "ffn_hidden_size": ffn,
        "moe_ffn_hidden_size": arguments.get("moe_ffn_hidden_size"),
        "num_experts": experts,
        "moe_router_topk": arguments.get("moe_router_topk", 2),
        "moe_aux_loss_coeff": _first(arguments.get("moe_aux_loss_coeff", 0.0)),
        "moe_first_dense_layers": dense,
    }


def _first(value: Any) -> Any:
    """Unwrap a one-element list: Megatron-LM stores a list because several kinds of balancing may be combined."""
    return value[0] if isinstance(value, list | tuple) and len(value) == 1 else value


def dense_layers(frequency: Any, layers: int, name: str) -> int:
    """Return the number of first layers without experts, from Megatron's `moe_layer_freq`. Raises BadConfig otherwise."""
    if not isinstance(frequency, int | list | tuple) or not frequency:
        raise BadConfig(f"{name}: moe_layer_freq is {frequency!r:.80}, neither a number of layers nor a list of 0 and 1")
    pattern = list(frequency) if isinstance(frequency, list | tuple) else [int(layer % frequency == 0) for layer in range(layers)]
    dense = pattern.index(1) if 1 in pattern else layers
    if len(pattern) != layers:
        raise BadConfig(f"{name}: moe_layer_freq is {frequency!r:.80}, of {len(pattern)} layers, and the model has {layers}")
    if pattern != [0] * dense + [1] * (layers - dense):
        raise BadConfig(f"{name}: moe_layer_freq is {frequency!r:.80}, and only first layers without experts are known here")
    return dense


def _latent_attention(arguments: Mapping[str, Any]) -> LatentAttention | None:
    if not arguments.get("multi_latent_attention"):
        return None
    return LatentAttention(**{field.name: arguments[field.name] for field in dataclasses.fields(LatentAttention)})


def _no_rope_freq(arguments: Mapping[str, Any], name: str) -> int | None:
    """Every how many layers one rotates nothing. Megatron-LM also takes a list with 1 for each such layer."""
    frequency, layers = arguments.get("no_rope_freq"), arguments["num_layers"]
    if not isinstance(frequency, list | tuple):
        return frequency or None
    every = list(frequency).index(1) + 1 if 1 in frequency else None
    if list(frequency) != [int(every is not None and (layer + 1) % every == 0) for layer in range(layers)]:
        raise BadConfig(f"{name}: no_rope_freq is {frequency!r:.80}, and only every so many layers may be without RoPE")
    return every


def _windows(arguments: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The window, and every how many layers one has none. Megatron-LM also takes a list with 1 for each layer with a window."""
    window, frequency = _sliding_window(arguments.get("window_size"), name), arguments.get("window_attn_skip_freq")
    if not isinstance(frequency, list | tuple):
        return {"sliding_window": window, "window_attn_skip_freq": frequency or None}
    pattern, layers = list(frequency), arguments["num_layers"]
    every = pattern.index(0) + 1 if 0 in pattern else None
    if pattern != [int(every is None or (layer + 1) % every != 0) for layer in range(layers)]:
        raise BadConfig(
            f"{name}: window_attn_skip_freq is {frequency!r:.80}, and only every so many layers may be without a window"
        )
    return {"sliding_window": window if any(pattern) else None, "window_attn_skip_freq": every if any(pattern) else None}


def _sliding_window(window_size: Any, name: str) -> int | None:
    if window_size is None:
        return None
    if not isinstance(window_size, list | tuple) or [type(side) for side in window_size] != [int, int]:
        raise BadConfig(f"{name}: window_size is {window_size!r:.80}, not two numbers of tokens")
    left, right = window_size
    if left == -1 and right in (-1, 0):
        # TransformerEngine's words for no window, beside a causal mask.
        return None
    if right != 0 or left < 0:
        raise BadConfig(f"{name}: a window of {left} tokens to the left and {right} to the right is not a causal sliding window")
    return int(left) + 1


def arguments_of_style(architecture: Architecture) -> dict[str, Any]:
    """The arguments that are the same for all models of a style."""
    return _style(
        architecture.family == "llama",
        architecture.activation,
        architecture.gated_linear_unit,
        architecture.normalization,
        architecture.add_bias_linear,
    )


def _style(llama: bool, activation: str, gated_linear_unit: bool, normalization: str, biases: bool) -> dict[str, Any]:
    return {
        "normalization": normalization if llama else "LayerNorm",
        "swiglu": llama and activation == "silu" and gated_linear_unit,
        "add_bias_linear": biases or not llama,
    }
