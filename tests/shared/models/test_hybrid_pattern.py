"""Layer patterns against what megatron-core's own parser and layer counts say (tests/convert/formats/megatron/test_hybrid.py)."""

import dataclasses

import pytest

from lt_shared.console import BadConfig
from lt_shared.models import hybrid_pattern, megatron_arguments
from lt_shared.models.hybrid_pattern import Pattern
from lt_shared.models.presets import preset

PRESETS = {
    "tiny": "*-*-*-*-",
    "tiny-mixtral": "*E*E*E*E",
    "tiny-gpt-oss": "*E*E*E*E",
    "tiny-glm4-moe": "*-*E*E*E",
    "tiny-deepseek-v3": "+-+E+E+E",
}


@pytest.mark.parametrize("name", PRESETS)
def test_arguments_there_and_back(name: str) -> None:
    architecture = dataclasses.replace(preset(name), mtp_num_layers=0)
    arguments = hybrid_pattern.from_decoder(megatron_arguments.to_arguments(architecture), architecture)
    assert (arguments["hybrid_layer_pattern"], arguments["num_layers"]) == (PRESETS[name], 8)
    assert "moe_layer_freq" not in arguments
    assert dataclasses.replace(megatron_arguments.from_arguments(arguments, name), name=architecture.name) == architecture


def test_stages() -> None:
    assert hybrid_pattern.parse("*-*-|*E", "run") == Pattern((("attention", False),) * 2 + (("attention", True),), (2, 1))
    assert hybrid_pattern.parse("+E", "run") == Pattern((("latent_attention", True),))


def test_windows_count_the_layers_of_hybrid_model() -> None:
    """megatron-core: a layer has no window if its number, from 1, is a multiple of the frequency. MLPs are counted."""
    architecture = dataclasses.replace(preset("tiny"), sliding_window=64, window_attn_skip_freq=2)
    arguments = hybrid_pattern.from_decoder(megatron_arguments.to_arguments(architecture), architecture)
    assert arguments["window_attn_skip_freq"] == [1, 0, 0, 0, 1, 0, 0, 0]
    by_number = {**arguments, "window_attn_skip_freq": 3}
    # Attention is layers 1, 3, 5 and 7.
    assert hybrid_pattern.to_decoder(by_number, "run")["window_attn_skip_freq"] == [1, 0, 1, 1]


def test_the_name_of_the_pattern_until_2025() -> None:
    arguments = hybrid_pattern.from_decoder(megatron_arguments.to_arguments(preset("tiny")), preset("tiny"))
    arguments["hybrid_override_pattern"] = arguments.pop("hybrid_layer_pattern")
    assert megatron_arguments.from_arguments(arguments, "run").num_layers == 4


def test_layers_without_rotation_count_the_layers_of_hybrid_model() -> None:
    """megatron-core asks `no_rope_freq` for the number of attention among all layers, MLPs included."""
    architecture = dataclasses.replace(preset("tiny-smollm3"), name="run")
    arguments = hybrid_pattern.from_decoder(megatron_arguments.to_arguments(architecture), architecture)
    assert arguments["no_rope_freq"] == [0, 0, 0, 0, 0, 0, 1, 0]
    assert megatron_arguments.from_arguments(arguments, "run") == architecture
    # The layers 4 and 8 are MLPs; of 12 layers, 3 and 9 have attention.
    assert megatron_arguments.from_arguments({**arguments, "no_rope_freq": 4}, "run").no_rope_freq is None
    longer = {**arguments, "hybrid_layer_pattern": "*-" * 6, "num_layers": 12, "no_rope_freq": 3}
    with pytest.raises(BadConfig, match=r"no_rope_freq is \[0, 1, 0, 0, 1, 0\]"):
        megatron_arguments.from_arguments(longer, "run")
    for frequency in ([0, 1], 3, -1, True, "4"):
        with pytest.raises(BadConfig, match="and the layer pattern has 8 layers"):
            megatron_arguments.from_arguments({**arguments, "no_rope_freq": frequency}, "run")
