"""An architecture survives as Megatron's arguments, and what those say beyond it is refused."""

import dataclasses
from typing import Any

import pytest
from megatron.core.transformer import TransformerConfig

from lt_shared.architecture import RopeScaling
from lt_shared.console import BadConfig
from lt_shared.megatron_arguments import from_arguments, to_arguments
from lt_shared.presets import PRESETS, preset

LLAMA = preset("llama3.2-1b")


@pytest.mark.parametrize("name", PRESETS)
def test_round_trip(name: str) -> None:
    assert from_arguments(to_arguments(preset(name)), name) == preset(name)


@pytest.mark.parametrize("name", ["llama3.2-1b", "gpt3-1.7b"])
def test_names_are_megatrons(name: str) -> None:
    """Those that megatron-core's configuration has under the same name mean the same there."""
    fields = {field.name for field in dataclasses.fields(TransformerConfig)}
    same = {key: value for key, value in to_arguments(preset(name)).items() if key in fields}
    assert {"num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels"} <= set(same)
    config = TransformerConfig(**same)
    assert {key: getattr(config, key) for key in same} == same


def test_megatrons_defaults_are_read() -> None:
    arguments = to_arguments(LLAMA) | {
        "group_query_attention": False,
        "num_query_groups": 1,
        "use_rope_scaling": False,
        "rotary_percent": 1.0,
        "add_qkv_bias": False,
        "qk_layernorm": False,
        "num_experts": None,
        "kv_channels": None,
    }
    architecture = from_arguments(arguments, "run")
    assert architecture.num_query_groups == architecture.num_attention_heads == 32
    assert architecture.rope_scaling is None
    assert architecture.kv_channels == 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"position_embedding_type": "none"}, "position embedding type 'none'"),
        ({"normalization": "LayerNorm"}, "normalization is 'LayerNorm' with rope positions, expected 'RMSNorm'"),
        ({"swiglu": False}, "swiglu is False"),
        ({"add_bias_linear": True}, "add_bias_linear is True"),
        ({"add_qkv_bias": True}, "add_qkv_bias is True"),
        ({"qk_layernorm": True}, "qk_layernorm is True"),
        ({"rotary_percent": 0.5}, "rotary_percent is 0.5"),
        ({"num_experts": 8}, "num_experts is 8"),
        ({"vocab_size": None}, "malformed"),
    ],
)
def test_another_architecture_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=f"run: .*{message}"):
        from_arguments(to_arguments(LLAMA) | change, "run")


def test_a_missing_size_is_named() -> None:
    arguments = to_arguments(LLAMA)
    del arguments["hidden_size"]
    with pytest.raises(BadConfig, match="run: the Megatron arguments have no 'hidden_size'"):
        from_arguments(arguments, "run")


def test_a_scaling_that_megatron_lacks_is_refused() -> None:
    other = dataclasses.replace(LLAMA, rope_scaling=RopeScaling(32.0, original_max_position_embeddings=4096))
    with pytest.raises(BadConfig, match="only the factor"):
        to_arguments(other)
