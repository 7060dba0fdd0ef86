"""SmolLM3 in transformers: Llama whose every fourth layer rotates nothing. A SmolLM3 that rotates in every layer is a Llama."""

from typing import Any

from lt_shared.console import BadConfig
from lt_shared.models.architecture import Architecture
from lt_shared.models.huggingface import config_fields
from lt_shared.models.huggingface.config_fields import ABSENT, ModelType

_NAME = "smollm3"
_INTERVAL = "no_rope_layer_interval"


def _write(architecture: Architecture) -> dict[str, Any]:
    return config_fields.written(architecture) | {
        **ABSENT,
        "sliding_window": None,
        **config_fields.padding(architecture, 128004),
        # 1 for a layer that rotates.
        "no_rope_layers": [int(architecture.rotates(layer)) for layer in range(architecture.num_layers)],
        _INTERVAL: architecture.no_rope_freq or architecture.num_layers + 1,
    }


def _read(config: dict[str, Any], name: str) -> Architecture:
    layers, interval = config["num_hidden_layers"], config[_INTERVAL]
    rotating = list(config.get("no_rope_layers") or [int((layer + 1) % interval != 0) for layer in range(layers)])
    frequency = rotating.index(0) + 1 if 0 in rotating else None
    if rotating != [int(frequency is None or (layer + 1) % frequency != 0) for layer in range(layers)]:
        raise BadConfig(f"{name}: no_rope_layers is {rotating}, and only every so many layers may be without RoPE")
    return config_fields.read(config, name, _NAME, rotary_base=2000000.0, no_rope_freq=frequency)


SMOLLM3 = ModelType(
    _NAME,
    "SmolLM3ForCausalLM",
    _write,
    _read,
    defaults={_INTERVAL: 4, "num_key_value_heads": 4, "tie_word_embeddings": True, "rms_norm_eps": 1e-6},
)
