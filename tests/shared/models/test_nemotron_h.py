"""Nemotron-H's config.json: layers as a list or as Megatron's symbols, and settings that no model here has."""

from typing import Any

import pytest

from lt_shared.console import BadConfig
from lt_shared.models import huggingface
from lt_shared.models.presets import preset

TINY = preset("tiny-nemotron-h")
CONFIG = huggingface.to_config(TINY, "float32")
TYPES = ["linear_attention", "mlp", "linear_attention", "full_attention", "linear_attention", "mlp"]
OLD_TYPES = ["mamba", "mlp", "mamba", "attention", "mamba", "mlp"]


@pytest.mark.parametrize(
    "layers",
    [
        {"layers_block_type": TYPES},
        {"layers_block_type": OLD_TYPES, "num_hidden_layers": 6},
        {"hybrid_override_pattern": "M-M*M-"},
        {"hybrid_override_pattern": "M-M*M-", "layers_block_type": OLD_TYPES},
    ],
)
def test_every_form_of_the_layers_is_read(layers: dict[str, Any]) -> None:
    config = {key: value for key, value in CONFIG.items() if key not in ("layers_block_type", "hybrid_override_pattern")}
    assert CONFIG["layers_block_type"] == TYPES
    assert CONFIG["hybrid_override_pattern"] == "M-M*M-"
    assert huggingface.from_config({**config, "num_hidden_layers": None, **layers}, TINY.name) == TINY


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hybrid_override_pattern": "M-MXM-", "layers_block_type": None}, "layer 3 in layers_block_type is 'X', known here are"),
        ({"layers_block_type": [*TYPES[:5], "sparse"], "hybrid_override_pattern": None}, "layer 5 in .* is 'sparse'"),
        ({"num_hidden_layers": 7}, "layers_block_type has 6 layers, and num_hidden_layers is 7"),
        ({"hybrid_override_pattern": "M-M*MM"}, "are one setting, and contradict each other"),
        ({"hybrid_override_pattern": "M-M*ME", "layers_block_type": None}, "has mlp and moe, and models here have one kind"),
        ({"hybrid_override_pattern": "*-*-*-", "layers_block_type": None}, "has no linear_attention"),
        ({"moe_latent_size": 64}, "moe_latent_size is 64"),
        ({"mlp_hidden_act": "silu"}, "mlp_hidden_act is 'silu', the nemotron_h family here has 'relu2'"),
        ({"use_bias": True}, "use_bias is True"),
        ({"sliding_window": 128}, "sliding_window is 128"),
        ({"n_groups": 3}, "8 Mamba-2 heads do not split into 3 groups"),
    ],
)
def test_other_models_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        huggingface.from_config({**CONFIG, **settings}, "model")
