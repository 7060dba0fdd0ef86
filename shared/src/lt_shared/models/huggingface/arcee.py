"""Models in transformers whose MLP has no gate: Arcee (AFM), with squared ReLU; Nemotron, also with LayerNorm; StarCoder 2.

Nemotron's LayerNorm multiplies by 1 + weight. StarCoder 2 has GELU by hyperbolic tangent, biases in all linear layers, and may
have a window.
"""

from typing import Any

from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields
from lt_shared.models.huggingface.config_fields import ModelType

_SQUARED_RELU: dict[str, Any] = {"activation": "relu2", "activation_here": "relu2", "gated_linear_unit": False}
_WITHOUT_BIASES = {"hidden_act": "relu2", "attention_bias": False, "mlp_bias": False}
_GELU = "gelu_pytorch_tanh"


def _write_arcee(architecture: Architecture) -> dict[str, Any]:
    return config_fields.written(architecture) | _WITHOUT_BIASES


def _read_arcee(config: dict[str, Any], name: str) -> Architecture:
    return config_fields.read(config, name, "arcee", **_SQUARED_RELU)


def _write_nemotron(architecture: Architecture) -> dict[str, Any]:
    return config_fields.written_partly_rotated(architecture) | _WITHOUT_BIASES | {"norm_eps": architecture.norm_epsilon}


def _read_nemotron(config: dict[str, Any], name: str) -> Architecture:
    return config_fields.read(
        config | {"rms_norm_eps": config["norm_eps"]},
        name,
        "nemotron",
        rotary_percent=0.5,
        normalization="LayerNorm",
        layernorm_zero_centered_gamma=True,
        **_SQUARED_RELU,
    )


def _write_starcoder2(architecture: Architecture) -> dict[str, Any]:
    return config_fields.written(architecture) | {
        "hidden_act": _GELU,
        "norm_epsilon": architecture.norm_epsilon,
        "use_bias": architecture.add_bias_linear,
        "sliding_window": architecture.sliding_window,
        **dict.fromkeys(("residual_dropout", "embedding_dropout"), 0.0),
    }


def _read_starcoder2(config: dict[str, Any], name: str) -> Architecture:
    return config_fields.read(
        config | {"rms_norm_eps": config["norm_epsilon"]},
        name,
        "starcoder2",
        absent={"use_sliding_window": False},
        activation=_GELU,
        activation_here="gelu_tanh",
        gated_linear_unit=False,
        normalization="LayerNorm",
        add_bias_linear=config["use_bias"],
        sliding_window=config.get("sliding_window"),
    )


ARCEE = ModelType("arcee", "ArceeForCausalLM", _write_arcee, _read_arcee, defaults={"rms_norm_eps": 1e-5})
NEMOTRON = ModelType("nemotron", "NemotronForCausalLM", _write_nemotron, _read_nemotron, defaults={"norm_eps": 1e-5})
STARCODER2 = ModelType(
    "starcoder2",
    "Starcoder2ForCausalLM",
    _write_starcoder2,
    _read_starcoder2,
    defaults={"norm_epsilon": 1e-5, "use_bias": True, "num_key_value_heads": 2, "tie_word_embeddings": True},
)
